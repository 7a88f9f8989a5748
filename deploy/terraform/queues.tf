# Three queues: the one that workers serve, <queue>-dlq for failed messages, <queue>-dead for those that wait for people.
#
# They are encrypted with keys of SQS (SSE-SQS). If you use a KMS key of your own, its policy must allow s3.amazonaws.com
# to use it (kms:GenerateDataKey*, kms:Decrypt), or notifications are lost silently.

locals {
  # A release costs a receive on SQS. Penstock dead-letters messages after max_attempts; SQS does so only for messages
  # that were received this often and never settled, because they kill their workers.
  max_receive_count = var.max_attempts + var.give_backs

  # A message keeps its receive count in the next queue. With a limit near the source's, SQS would move dead letters from
  # the DLQ to the final DLQ at their first receive. 1,000 is the limit of SQS.
  dead_letter_max_receive_count = 1000
}

resource "aws_sqs_queue" "source" {
  name                       = var.queue
  visibility_timeout_seconds = ceil(var.lease_seconds)
  receive_wait_time_seconds  = 20
  message_retention_seconds  = var.retention_seconds
  sqs_managed_sse_enabled    = true

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dlq.arn
    maxReceiveCount     = local.max_receive_count
  })

  lifecycle {
    precondition {
      condition     = var.dead_letter_retention_seconds > var.retention_seconds
      error_message = "dead_letter_retention_seconds must be longer than retention_seconds: dead letters keep their age."
    }

    precondition {
      condition     = local.max_receive_count < local.dead_letter_max_receive_count
      error_message = "The sum of max_attempts and give_backs must be below 1,000."
    }
  }
}

resource "aws_sqs_queue" "dlq" {
  name                       = "${var.queue}-dlq"
  visibility_timeout_seconds = ceil(var.lease_seconds)
  receive_wait_time_seconds  = 20
  message_retention_seconds  = var.dead_letter_retention_seconds
  sqs_managed_sse_enabled    = true

  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead.arn
    maxReceiveCount     = local.dead_letter_max_receive_count
  })
}

resource "aws_sqs_queue" "dead" {
  name                       = "${var.queue}-dead"
  visibility_timeout_seconds = ceil(var.lease_seconds)
  receive_wait_time_seconds  = 20
  message_retention_seconds  = var.dead_letter_retention_seconds
  sqs_managed_sse_enabled    = true
}

# No other queue may use these as its DLQ.

resource "aws_sqs_queue_redrive_allow_policy" "dlq" {
  queue_url = aws_sqs_queue.dlq.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.source.arn]
  })
}

resource "aws_sqs_queue_redrive_allow_policy" "dead" {
  queue_url = aws_sqs_queue.dead.id

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.dlq.arn]
  })
}
