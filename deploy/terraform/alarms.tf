# CloudWatch alarms, the same as in deploy/cloudwatch/alarms.yaml. What each means and what to do is in docs/fix/alerts.md,
# under the name at the end of its description.

variable "alarms" {
  description = "Alarms on the queue, its dead letters and its log; {}: none. docs/fix/alerts.md explains each field."
  type = object({
    page_topic              = optional(string)      # ARN of the SNS topic for urgent alarms; null: no alarms
    warn_topic              = optional(string)      # ARN of the one for the others; null: the same
    log_group               = optional(string)      # the log group that workers write JSON to; null: none
    own_metrics             = optional(bool, false) # are Penstock's own metrics in CloudWatch (metrics.export)?
    namespace               = optional(string, "Penstock")
    pipeline                = optional(string) # the pipeline that the queue feeds; null: none
    late_after_seconds      = optional(number, 300)
    dead_letter_age_seconds = optional(number) # null: half of dead_letter_retention_seconds
    quarantine_percent      = optional(number, 5)
    publish_after_seconds   = optional(number, 900)
  })
  default  = {}
  nullable = false
}

locals {
  alarms_log      = var.alarms.log_group != null
  alarms_pipeline = var.alarms.own_metrics && var.alarms.pipeline != null

  alarm_topics = {
    page = var.alarms.page_topic
    warn = var.alarms.warn_topic == null ? var.alarms.page_topic : var.alarms.warn_topic
  }

  alarm_names = {
    source = { QueueName = aws_sqs_queue.source.name }
    dlq    = { QueueName = aws_sqs_queue.dlq.name }
    dead   = { QueueName = aws_sqs_queue.dead.name }
  }

  dead_letter_age_seconds = coalesce(var.alarms.dead_letter_age_seconds, var.dead_letter_retention_seconds / 2)
  quarantine_reasons = {
    malformed = "malformed"
    type      = "wrong type"
    utf8      = "invalid UTF-8"
    encoding  = "invalid encoding"
  }

  # Alarms on one metric.
  metric_alarms = {
    # SQS's age includes messages in flight, and restarts with every third receive without a delete.
    OldestMessage = {
      wanted     = !var.alarms.own_metrics
      name       = "is late"
      says       = "page: For five minutes the oldest message has been older than the limit. docs/fix/alerts.md, PenstockQueueLate."
      namespace  = "AWS/SQS"
      metric     = "ApproximateAgeOfOldestMessage"
      dimensions = local.alarm_names.source
      statistic  = "Maximum"
      period     = 60
      periods    = 5
      threshold  = var.alarms.late_after_seconds
    }

    FirstTierNearEnd = {
      wanted     = true
      name       = "has dead letters near their end in dlq"
      says       = "warn: The oldest dead letter has waited for half of its retention. docs/fix/alerts.md, PenstockDeadLettersNearEnd."
      namespace  = "AWS/SQS"
      metric     = "ApproximateAgeOfOldestMessage"
      dimensions = local.alarm_names.dlq
      statistic  = "Maximum"
      period     = 3600
      periods    = 1
      threshold  = local.dead_letter_age_seconds
    }

    SecondTierNearEnd = {
      wanted     = true
      name       = "has dead letters near their end in dead"
      says       = "warn: The oldest dead letter has waited for half of its retention. docs/fix/alerts.md, PenstockDeadLettersNearEnd."
      namespace  = "AWS/SQS"
      metric     = "ApproximateAgeOfOldestMessage"
      dimensions = local.alarm_names.dead
      statistic  = "Maximum"
      period     = 3600
      periods    = 1
      threshold  = local.dead_letter_age_seconds
    }

    Errors = {
      wanted     = local.alarms_log
      name       = "logs errors"
      says       = "warn: The log has lines of level error: final failures, or something that cannot continue. docs/fix/alerts.md, PenstockHandlerGivesUp."
      namespace  = var.alarms.namespace
      metric     = "log_errors_${var.queue}"
      dimensions = {}
      statistic  = "Sum"
      period     = 300
      periods    = 1
      threshold  = 0
    }

    ShutdownsForced = {
      wanted     = local.alarms_log
      name       = "left workers by force"
      says       = "warn: Workers exited without releasing all of their messages. docs/fix/alerts.md, PenstockShutdownForced."
      namespace  = var.alarms.namespace
      metric     = "log_workers_forced_${var.queue}"
      dimensions = {}
      statistic  = "Sum"
      period     = 300
      periods    = 1
      threshold  = 0
    }

    LeasesLost = {
      wanted     = var.alarms.own_metrics
      name       = "lost leases"
      says       = "warn: Workers lost leases of messages that they were processing. docs/fix/alerts.md, PenstockLeasesLost."
      namespace  = var.alarms.namespace
      metric     = "penstock_messages_settled_total"
      dimensions = { queue = var.queue, outcome = "lease_lost" }
      statistic  = "Sum"
      period     = 300
      periods    = 1
      threshold  = 0
    }

    LeasesOrphaned = {
      wanted     = var.alarms.own_metrics
      name       = "has orphaned leases"
      says       = "warn: Workers died while processing messages, which were delivered again. docs/fix/alerts.md, PenstockLeasesOrphaned."
      namespace  = var.alarms.namespace
      metric     = "penstock_expired_leases_total"
      dimensions = { queue = var.queue }
      statistic  = "Sum"
      period     = 300
      periods    = 1
      threshold  = 0
    }

    # Missing data is as bad as 0: nothing is measured.
    MonitorBlind = {
      wanted     = var.alarms.own_metrics
      name       = "is not measured"
      says       = "page: No worker is the elected monitor, or its polls of the broker fail. docs/fix/alerts.md, PenstockMonitorBlind."
      namespace  = var.alarms.namespace
      metric     = "penstock_monitor_up"
      dimensions = { source = "broker" }
      statistic  = "Minimum"
      period     = 60
      periods    = 5
      threshold  = 1
      comparison = "LessThanThreshold"
      missing    = "breaching"
    }

    # The following alarms are silent without this measurement.
    LedgerBlind = {
      wanted     = local.alarms_pipeline
      name       = "has objects that are not measured"
      says       = "page: No worker is the elected monitor, or its polls of the ledger fail. docs/fix/alerts.md, PenstockMonitorBlind."
      namespace  = var.alarms.namespace
      metric     = "penstock_monitor_up"
      dimensions = { source = "ledger" }
      statistic  = "Minimum"
      period     = 60
      periods    = 5
      threshold  = 1
      comparison = "LessThanThreshold"
      missing    = "breaching"
    }

    ObjectsOverdue = {
      wanted     = local.alarms_pipeline
      name       = "has objects overdue"
      says       = "page: Objects have been unprocessed for longer than objects.overdue_after. docs/fix/alerts.md, PenstockObjectsOverdue."
      namespace  = var.alarms.namespace
      metric     = "penstock_objects_overdue"
      dimensions = { pipeline = var.alarms.pipeline }
      statistic  = "Maximum"
      period     = 60
      periods    = 5
      threshold  = 0
    }

    ObjectsMissing = {
      wanted     = local.alarms_pipeline
      name       = "has objects missing"
      says       = "page: The latest reconcile found objects whose notifications were lost. docs/fix/alerts.md, PenstockObjectsMissing."
      namespace  = var.alarms.namespace
      metric     = "penstock_objects_missing"
      dimensions = { pipeline = var.alarms.pipeline }
      statistic  = "Maximum"
      period     = 60
      periods    = 1
      threshold  = 0
    }

    PublishLate = {
      wanted     = local.alarms_pipeline
      name       = "publishes late"
      says       = "warn: A committed batch has not been visible for too long. docs/fix/alerts.md, PenstockPublishLate."
      namespace  = var.alarms.namespace
      metric     = "penstock_commit_to_publish_lag_seconds"
      dimensions = { pipeline = var.alarms.pipeline }
      statistic  = "Maximum"
      period     = 60
      periods    = 5
      threshold  = var.alarms.publish_after_seconds
    }
  }

  # Alarms on expressions over several metrics; `result` is compared to the threshold.
  math_alarms = {
    # Each worker estimates the age from its own receives, and the worker that received last has the best estimate: the minimum.
    Late = {
      wanted     = var.alarms.own_metrics
      name       = "is late"
      says       = "page: For five minutes the oldest visible message has waited longer than the limit. docs/fix/alerts.md, PenstockQueueLate."
      namespace  = "AWS/SQS"
      period     = 60
      periods    = 5
      threshold  = var.alarms.late_after_seconds
      expression = { result = "IF(FILL(visible, 0) > 0, age, 0)" }
      metrics = {
        visible = { name = "ApproximateNumberOfMessagesVisible", dimensions = local.alarm_names.source, stat = "Maximum" }
        age = {
          namespace  = var.alarms.namespace
          name       = "penstock_queue_oldest_visible_message_age_seconds"
          dimensions = { queue = var.queue, source = "estimated" }
          stat       = "Minimum"
        }
      }
    }

    # If messages are in flight, workers are busy: then the queue may be lagging, but it has a consumer.
    Unconsumed = {
      wanted     = true
      name       = "is unconsumed"
      says       = "page: Messages wait, and no worker has received one for five minutes. docs/fix/alerts.md, PenstockQueueUnconsumed."
      namespace  = "AWS/SQS"
      period     = 60
      periods    = 5
      threshold  = 0
      expression = { result = "IF(FILL(visible, 0) > 0 AND FILL(received, 0) == 0 AND FILL(hidden, 0) == 0, 1, 0)" }
      metrics = {
        visible  = { name = "ApproximateNumberOfMessagesVisible", dimensions = local.alarm_names.source, stat = "Minimum" }
        received = { name = "NumberOfMessagesReceived", dimensions = local.alarm_names.source, stat = "Sum" }
        hidden   = { name = "ApproximateNumberOfMessagesNotVisible", dimensions = local.alarm_names.source, stat = "Maximum" }
      }
    }

    # People who read dead letters hide them for a while, and replay hides them until their wait is over. So hidden ones count,
    # otherwise the alarm would end and start again.
    DeadLettersForPeople = {
      wanted     = true
      name       = "has dead letters for people"
      says       = "page: Dead letters are in the final DLQ, and nothing replays them automatically. docs/fix/alerts.md, PenstockDeadLettersForPeople."
      namespace  = "AWS/SQS"
      period     = 60
      periods    = 1
      threshold  = 0
      expression = { result = "FILL(visible, 0) + FILL(hidden, 0)" }
      metrics = {
        visible = { name = "ApproximateNumberOfMessagesVisible", dimensions = local.alarm_names.dead, stat = "Maximum" }
        hidden  = { name = "ApproximateNumberOfMessagesNotVisible", dimensions = local.alarm_names.dead, stat = "Maximum" }
      }
    }

    DeadLetters = {
      wanted     = true
      name       = "has dead letters"
      says       = "warn: Dead letters have been in the DLQ for five minutes. docs/fix/alerts.md, PenstockDeadLetters."
      namespace  = "AWS/SQS"
      period     = 60
      periods    = 5
      threshold  = 0
      expression = { result = "FILL(visible, 0) + FILL(hidden, 0)" }
      metrics = {
        visible = { name = "ApproximateNumberOfMessagesVisible", dimensions = local.alarm_names.dlq, stat = "Maximum" }
        hidden  = { name = "ApproximateNumberOfMessagesNotVisible", dimensions = local.alarm_names.dlq, stat = "Maximum" }
      }
    }

    QuarantineHigh = {
      wanted    = local.alarms_pipeline
      name      = "quarantines too much"
      says      = "warn: Too many lines could not be read within an hour. docs/fix/alerts.md, PenstockQuarantineHigh."
      namespace = var.alarms.namespace
      period    = 3600
      periods   = 1
      threshold = var.alarms.quarantine_percent
      expression = {
        result = "IF(bad > 0, 100 * bad / (bad + FILL(rows, 0)), 0)"
        bad    = join(" + ", [for id in ["malformed", "type", "utf8", "encoding"] : "FILL(${id}, 0)"])
      }
      metrics = merge(
        { rows = { name = "penstock_batch_rows_total", dimensions = { pipeline = var.alarms.pipeline }, stat = "Sum" } },
        {
          for id, reason in local.quarantine_reasons : id => {
            name       = "penstock_quarantined_lines_total"
            dimensions = { pipeline = var.alarms.pipeline, reason = reason }
            stat       = "Sum"
          }
        },
      )
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "metric" {
  for_each = { for id, alarm in local.metric_alarms : id => alarm if alarm.wanted && var.alarms.page_topic != null }

  alarm_name          = "${var.queue} ${each.value.name}"
  alarm_description   = each.value.says
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  period              = each.value.period
  evaluation_periods  = each.value.periods
  threshold           = each.value.threshold
  comparison_operator = try(each.value.comparison, "GreaterThanThreshold")
  treat_missing_data  = try(each.value.missing, "notBreaching")
  alarm_actions       = [local.alarm_topics[substr(each.value.says, 0, 4)]]
  ok_actions          = [local.alarm_topics[substr(each.value.says, 0, 4)]]
}

resource "aws_cloudwatch_metric_alarm" "math" {
  for_each = { for id, alarm in local.math_alarms : id => alarm if alarm.wanted && var.alarms.page_topic != null }

  alarm_name          = "${var.queue} ${each.value.name}"
  alarm_description   = each.value.says
  evaluation_periods  = each.value.periods
  threshold           = each.value.threshold
  comparison_operator = "GreaterThanThreshold"
  treat_missing_data  = "notBreaching"
  alarm_actions       = [local.alarm_topics[substr(each.value.says, 0, 4)]]
  ok_actions          = [local.alarm_topics[substr(each.value.says, 0, 4)]]

  dynamic "metric_query" {
    for_each = each.value.expression
    content {
      id          = metric_query.key
      expression  = metric_query.value
      label       = metric_query.key
      return_data = metric_query.key == "result"
    }
  }

  dynamic "metric_query" {
    for_each = each.value.metrics
    iterator = query
    content {
      id = query.key

      metric {
        namespace   = try(query.value.namespace, each.value.namespace)
        metric_name = query.value.name
        dimensions  = query.value.dimensions
        stat        = query.value.stat
        period      = each.value.period
      }
    }
  }
}

# Other lines count as zero, which distinguishes a quiet log from a missing one.
resource "aws_cloudwatch_log_metric_filter" "events" {
  for_each = {
    for name, pattern in {
      log_errors         = "{ $.level = \"error\" }"
      log_workers_forced = "{ $.event = \"worker.forced\" }"
    } : name => pattern if local.alarms_log && var.alarms.page_topic != null
  }

  name           = "${var.queue}-${each.key}"
  log_group_name = var.alarms.log_group
  pattern        = each.value

  metric_transformation {
    namespace     = var.alarms.namespace
    name          = "${each.key}_${var.queue}"
    value         = "1"
    default_value = "0"
  }
}
