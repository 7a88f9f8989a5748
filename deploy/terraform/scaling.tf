# Scale workers on ECS by messages per running task (target tracking). Messages in flight count too, otherwise a task would
# be removed because it had started its messages.

variable "scaling" {
  description = "Scale an ECS service of workers by messages per task; {}: no scaling. See docs/run/deploying.md."
  type = object({
    cluster           = optional(string) # name of the cluster, with Container Insights; null: no scaling
    service           = optional(string) # name of the service of workers
    tasks_min         = optional(number, 1)
    tasks_max         = optional(number, 20)
    messages_per_task = optional(number, 100) # PENSTOCK_WORKER_CONCURRENCY of one worker
  })
  default  = {}
  nullable = false
}

locals {
  scaled = var.scaling.cluster != null && var.scaling.service != null
}

resource "aws_appautoscaling_target" "worker" {
  count = local.scaled ? 1 : 0

  service_namespace  = "ecs"
  resource_id        = "service/${var.scaling.cluster}/${var.scaling.service}"
  scalable_dimension = "ecs:service:DesiredCount"
  min_capacity       = var.scaling.tasks_min
  max_capacity       = var.scaling.tasks_max
}

resource "aws_appautoscaling_policy" "worker" {
  count = local.scaled ? 1 : 0

  name               = "${var.queue}-messages-per-task"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.worker[0].service_namespace
  resource_id        = aws_appautoscaling_target.worker[0].resource_id
  scalable_dimension = aws_appautoscaling_target.worker[0].scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value = var.scaling.messages_per_task
    # Each task that stops releases its unfinished messages, so scale in slowly and out quickly.
    scale_in_cooldown  = 300
    scale_out_cooldown = 60

    customized_metric_specification {
      metrics {
        id          = "visible"
        return_data = false

        metric_stat {
          stat = "Average"

          metric {
            namespace   = "AWS/SQS"
            metric_name = "ApproximateNumberOfMessagesVisible"

            dimensions {
              name  = "QueueName"
              value = aws_sqs_queue.source.name
            }
          }
        }
      }

      metrics {
        id          = "in_flight"
        return_data = false

        metric_stat {
          stat = "Average"

          metric {
            namespace   = "AWS/SQS"
            metric_name = "ApproximateNumberOfMessagesNotVisible"

            dimensions {
              name  = "QueueName"
              value = aws_sqs_queue.source.name
            }
          }
        }
      }

      metrics {
        id          = "tasks"
        return_data = false

        metric_stat {
          stat = "Average"

          metric {
            namespace   = "ECS/ContainerInsights"
            metric_name = "RunningTaskCount"

            dimensions {
              name  = "ClusterName"
              value = var.scaling.cluster
            }

            dimensions {
              name  = "ServiceName"
              value = var.scaling.service
            }
          }
        }
      }

      metrics {
        id          = "per_task"
        label       = "messages per task"
        expression  = "(visible + in_flight) / IF(tasks > 0, tasks, 1)"
        return_data = true
      }
    }
  }
}
