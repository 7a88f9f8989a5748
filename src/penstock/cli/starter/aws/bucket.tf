# The bucket sends a notification to the queue for each new object. The bucket itself must exist.

locals {
  bucket_arn = var.bucket == null ? null : "arn:${data.aws_partition.current.partition}:s3:::${var.bucket}"
}

data "aws_iam_policy_document" "bucket_sends" {
  count = var.bucket == null ? 0 : 1

  statement {
    sid       = "BucketSends"
    effect    = "Allow"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.source.arn]

    principals {
      type        = "Service"
      identifiers = ["s3.amazonaws.com"]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [local.bucket_arn]
    }

    # Another account can take the name of a deleted bucket.
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

resource "aws_sqs_queue_policy" "bucket_sends" {
  count = var.bucket == null ? 0 : 1

  queue_url = aws_sqs_queue.source.id
  policy    = data.aws_iam_policy_document.bucket_sends[0].json
}

# This is the bucket's whole notification configuration: any other is removed. See manage_notification.
resource "aws_s3_bucket_notification" "created" {
  count = var.bucket != null && var.manage_notification ? 1 : 0

  bucket = var.bucket

  dynamic "queue" {
    for_each = toset(var.prefixes)

    content {
      queue_arn     = aws_sqs_queue.source.arn
      events        = ["s3:ObjectCreated:*"]
      filter_prefix = queue.value
    }
  }

  # S3 sends a test message when it is configured, so the policy must exist.
  depends_on = [aws_sqs_queue_policy.bucket_sends]
}
