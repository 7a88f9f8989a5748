# Three queues: the one that is worked on, <queue>-dlq for what failed, <queue>-dead for what only people look at.
#
# They are encrypted by keys of SQS (SSE-SQS). With a KMS key of your own instead, that key's policy has to let
# s3.amazonaws.com use it (kms:GenerateDataKey*, kms:Decrypt), or notifications vanish without a word.

locals {
  # Giving a message back costs a receive on SQS. Penstock itself makes dead letters after max_attempts; SQS does it only
  # for what was received that often and never settled: a message that kills its workers.
  max_receive_count = var.max_attempts + var.give_backs

  # The count of receives goes with a message into the next queue: with a count near the source's, the first tier would
  # hand its letters on to the second at the first look. 1,000 is the most that SQS takes.
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
      error_message = "dead_letter_retention_seconds has to be longer than retention_seconds: dead letters keep their age."
    }

    precondition {
      condition     = local.max_receive_count < local.dead_letter_max_receive_count
      error_message = "max_attempts and give_backs have to stay below 1,000 together."
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

# No other queue may use these for its dead letters.

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
