# Who may do what, and nothing more. Nobody gets a wildcard for a resource, and only replay may read dead letters.

locals {
  table_arn = var.table == null ? null : "arn:${data.aws_partition.current.partition}:s3:::${var.table.bucket}"

  # Of the table and of its quarantine.
  table_prefixes = var.table == null ? [] : ["${var.table.prefix}/", "${var.table.prefix}_quarantine/"]
}

# A worker: takes messages, reads objects, writes its table. It sends nothing but dead letters; where its handlers send
# messages, or tick, it needs the sender's policy as well.
data "aws_iam_policy_document" "worker" {
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

  # For `penstock doctor` alone: are versions kept, and where are new objects announced?
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

# A sender: puts messages into the queue.
data "aws_iam_policy_document" "sender" {
  statement {
    sid       = "Send"
    effect    = "Allow"
    actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"]
    resources = [aws_sqs_queue.source.arn]
  }
}

# Replay: takes dead letters out of both tiers, and sends them back, or from the first tier to the second. A replayer by
# itself leaves the second tier alone; people who replay do not.
data "aws_iam_policy_document" "replay" {
  statement {
    sid    = "TakeLetters"
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

  statement {
    sid       = "SendLetters"
    effect    = "Allow"
    actions   = ["sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"]
    resources = [aws_sqs_queue.source.arn, aws_sqs_queue.dead.arn]
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

resource "aws_iam_role_policy" "replay_beside" {
  for_each = var.replay_roles

  name   = "${var.queue}-replay"
  role   = each.value
  policy = data.aws_iam_policy_document.replay.json
}
