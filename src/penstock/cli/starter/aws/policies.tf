# Least-privilege policies. Only cloudwatch:GetMetricData has a wildcard as its resource, because AWS knows none for it.

locals {
  table_arn = var.table == null ? null : "arn:${data.aws_partition.current.partition}:s3:::${var.table.bucket}"

  # The prefixes of the table and its quarantine.
  table_prefixes = var.table == null ? [] : ["${var.table.prefix}/", "${var.table.prefix}_quarantine/"]
}

# A worker receives messages, reads objects and writes its table. One elected worker measures the queues. With
# dead_letters_replay, workers also send dead letters back, and with dead_letters_archive one elected worker archives them;
# otherwise they cannot read them. If handlers send messages or have a schedule, workers need the sender's policy as well.
data "aws_iam_policy_document" "worker" {
  source_policy_documents = concat(
    [data.aws_iam_policy_document.monitor.json],
    var.dead_letters_replay ? [data.aws_iam_policy_document.automatic_replay.json] : [],
    var.dead_letters_archive ? [data.aws_iam_policy_document.archive_dead_letters.json] : [],
  )

  statement {
    sid    = "Work"
    effect = "Allow"
    actions = [
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ReceiveMessage",
    ]
    resources = [aws_sqs_queue.source.arn]
  }

  statement {
    sid    = "DeadLetters"
    effect = "Allow"
    actions = [
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:SendMessage",
    ]
    resources = [aws_sqs_queue.dlq.arn]
  }

  dynamic "statement" {
    for_each = var.bucket == null ? [] : [local.bucket_arn]

    content {
      sid       = "ReadObjects"
      effect    = "Allow"
      actions   = ["s3:GetObject", "s3:GetObjectVersion"]
      resources = [for prefix in var.prefixes : "${statement.value}/${prefix}*"]
    }
  }

  dynamic "statement" {
    for_each = var.bucket == null ? [] : [local.bucket_arn]

    content {
      sid       = "ListObjects"
      effect    = "Allow"
      actions   = ["s3:ListBucket", "s3:ListBucketVersions"]
      resources = [statement.value]

      condition {
        test     = "StringLike"
        variable = "s3:prefix"
        values   = flatten([for prefix in var.prefixes : [trimsuffix(prefix, "/"), "${prefix}*"]])
      }
    }
  }

  # Only for `penstock doctor`: the bucket's versioning and notifications.
  dynamic "statement" {
    for_each = var.bucket == null ? [] : [local.bucket_arn]

    content {
      sid       = "SeeBucket"
      effect    = "Allow"
      actions   = ["s3:GetBucketNotification", "s3:GetBucketVersioning"]
      resources = [statement.value]
    }
  }

  dynamic "statement" {
    for_each = var.table == null ? [] : [local.table_arn]

    content {
      sid       = "WriteTable"
      effect    = "Allow"
      actions   = ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
      resources = [for prefix in local.table_prefixes : "${statement.value}/${prefix}*"]
    }
  }

  dynamic "statement" {
    for_each = var.table == null ? [] : [local.table_arn]

    content {
      sid       = "ListTable"
      effect    = "Allow"
      actions   = ["s3:ListBucket"]
      resources = [statement.value]

      condition {
        test     = "StringLike"
        variable = "s3:prefix"
        values   = [for prefix in local.table_prefixes : "${prefix}*"]
      }
    }
  }

  dynamic "statement" {
    for_each = length(var.kms_keys) == 0 ? [] : [var.kms_keys]

    content {
      sid       = "Keys"
      effect    = "Allow"
      actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
      resources = statement.value
    }
  }
}

# A sender sends messages to the queue.
data "aws_iam_policy_document" "sender" {
  statement {
    sid       = "Send"
    effect    = "Allow"
    actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"]
    resources = [aws_sqs_queue.source.arn]
  }
}

# The monitor, a job of the elected worker, reads the counts of the three queues, and ages from CloudWatch.
data "aws_iam_policy_document" "monitor" {
  statement {
    sid       = "Measure"
    effect    = "Allow"
    actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl"]
    resources = [aws_sqs_queue.source.arn, aws_sqs_queue.dlq.arn, aws_sqs_queue.dead.arn]
  }

  statement {
    sid       = "Ages"
    effect    = "Allow"
    actions   = ["cloudwatch:GetMetricData"]
    resources = ["*"]
  }
}

# Automatic replay receives from the DLQ, and sends to the queue or, after the last replay, to the final DLQ.
data "aws_iam_policy_document" "automatic_replay" {
  statement {
    sid    = "ReceiveDeadLetters"
    effect = "Allow"
    actions = [
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ReceiveMessage",
    ]
    resources = [aws_sqs_queue.dlq.arn]
  }

  statement {
    sid       = "SendDeadLetters"
    effect    = "Allow"
    actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"]
    resources = [aws_sqs_queue.source.arn, aws_sqs_queue.dead.arn]
  }
}

# The job that archives dead letters before they expire receives and deletes in both DLQs. The archive's bucket is not here:
# writing to it is a permission of its own (s3:PutObject below its prefix).
data "aws_iam_policy_document" "archive_dead_letters" {
  statement {
    sid    = "ArchiveDeadLetters"
    effect = "Allow"
    actions = [
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ReceiveMessage",
    ]
    resources = [aws_sqs_queue.dlq.arn, aws_sqs_queue.dead.arn]
  }
}

# People who replay (`penstock dead replay`) also receive from the final DLQ.
data "aws_iam_policy_document" "replay" {
  source_policy_documents = [data.aws_iam_policy_document.automatic_replay.json]

  statement {
    sid    = "ReceiveFinalDeadLetters"
    effect = "Allow"
    actions = [
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ReceiveMessage",
    ]
    resources = [aws_sqs_queue.dead.arn]
  }
}

data "aws_iam_policy_document" "replay_trust" {
  statement {
    sid     = "TakeOn"
    effect  = "Allow"
    actions = ["sts:AssumeRole"]

    principals {
      type = "AWS"
      identifiers = length(var.replay_principals) > 0 ? var.replay_principals : [
        "arn:${data.aws_partition.current.partition}:iam::${data.aws_caller_identity.current.account_id}:root",
      ]
    }
  }
}

resource "aws_iam_policy" "worker" {
  name   = "${var.queue}-worker"
  policy = data.aws_iam_policy_document.worker.json
}

resource "aws_iam_policy" "sender" {
  name   = "${var.queue}-sender"
  policy = data.aws_iam_policy_document.sender.json
}

resource "aws_iam_role_policy_attachment" "worker" {
  for_each = var.worker_roles

  role       = each.value
  policy_arn = aws_iam_policy.worker.arn
}

resource "aws_iam_role_policy_attachment" "sender" {
  for_each = var.sender_roles

  role       = each.value
  policy_arn = aws_iam_policy.sender.arn
}

resource "aws_iam_role" "replay" {
  count = var.replay_role ? 1 : 0

  name_prefix        = "penstock-replay-"
  description        = "Sends dead letters of ${var.queue} back"
  assume_role_policy = data.aws_iam_policy_document.replay_trust.json
}

resource "aws_iam_role_policy" "replay" {
  count = var.replay_role ? 1 : 0

  name   = "replay"
  role   = aws_iam_role.replay[0].id
  policy = data.aws_iam_policy_document.replay.json
}
