# The policy of an operator, and roles for workers, senders and operators.

locals {
  kinds = var.make_roles ? toset(["worker", "sender", "operator"]) : toset([])

  # arn:PARTITION:sqs:REGION:ACCOUNT:NAME
  arn_parts = split(":", aws_sqs_queue.source.arn)
  ecs_tasks = "arn:${local.arn_parts[1]}:ecs:${local.arn_parts[3]}:${local.arn_parts[4]}"
}

# An operator is a person with `penstock status`, `queues` and `dead`, in a task or pod for one command (docs/fix/alerts.md). It
# measures like the monitor and replays dead letters. It neither receives nor deletes messages of the queue, and purges no
# queue.
data "aws_iam_policy_document" "operator" {
  source_policy_documents = [
    data.aws_iam_policy_document.monitor.json,
    data.aws_iam_policy_document.replay.json,
  ]

  # For `penstock status`: is the table behind the ledger?
  dynamic "statement" {
    for_each = var.table == null ? [] : [local.table_arn]

    content {
      sid       = "ReadTable"
      effect    = "Allow"
      actions   = ["s3:GetObject"]
      resources = [for prefix in local.table_prefixes : "${statement.value}/${prefix}*"]
    }
  }

  dynamic "statement" {
    for_each = var.table == null ? [] : [local.table_arn]

    content {
      sid       = "ListTableToRead"
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
    for_each = var.table == null || length(var.kms_keys) == 0 ? [] : [var.kms_keys]

    content {
      sid       = "KeysToRead"
      effect    = "Allow"
      actions   = ["kms:Decrypt"]
      resources = statement.value
    }
  }

  # Names only; AWS knows no resources for this action.
  statement {
    sid       = "ListNames"
    effect    = "Allow"
    actions   = ["sqs:ListQueues"]
    resources = ["*"]
  }

  # `penstock dead import` sends dead letters to the DLQ.
  statement {
    sid       = "ImportDeadLetters"
    effect    = "Allow"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.dlq.arn]
  }
}

# Penstock's own metrics, in one namespace. AWS knows no resources for this action, so a condition restricts it.
data "aws_iam_policy_document" "metrics" {
  count = var.cloudwatch_namespace == null ? 0 : 1

  statement {
    sid       = "Metrics"
    effect    = "Allow"
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = [var.cloudwatch_namespace]
    }
  }
}

# A task with long work asks not to be scaled in. ECS's agent uses the permissions of the task.
data "aws_iam_policy_document" "protection" {
  count = var.ecs_cluster == null ? 0 : 1

  statement {
    sid       = "ProtectTask"
    effect    = "Allow"
    actions   = ["ecs:UpdateTaskProtection"]
    resources = ["${local.ecs_tasks}:task/${var.ecs_cluster}/*"]
  }
}

data "aws_iam_policy_document" "own_trust" {
  for_each = local.kinds

  dynamic "statement" {
    for_each = var.oidc_provider == null ? [local.ecs_tasks] : []

    content {
      sid     = "Tasks"
      effect  = "Allow"
      actions = ["sts:AssumeRole"]

      principals {
        type        = "Service"
        identifiers = ["ecs-tasks.amazonaws.com"]
      }

      # Only tasks of this account.
      condition {
        test     = "ArnLike"
        variable = "aws:SourceArn"
        values   = ["${statement.value}:*"]
      }

      condition {
        test     = "StringEquals"
        variable = "aws:SourceAccount"
        values   = [data.aws_caller_identity.current.account_id]
      }
    }
  }

  dynamic "statement" {
    for_each = var.oidc_provider == null ? [] : [var.oidc_provider]

    content {
      sid     = "Pods"
      effect  = "Allow"
      actions = ["sts:AssumeRoleWithWebIdentity"]

      principals {
        type        = "Federated"
        identifiers = [statement.value.arn]
      }

      condition {
        test     = "StringEquals"
        variable = "${statement.value.url}:sub"
        values   = ["system:serviceaccount:${var.service_accounts[each.key]}"]
      }

      condition {
        test     = "StringEquals"
        variable = "${statement.value.url}:aud"
        values   = ["sts.amazonaws.com"]
      }
    }
  }
}

resource "aws_iam_role" "own" {
  for_each = local.kinds

  name               = "${var.queue}-${each.key}"
  description        = "Penstock, ${each.key} of the queue ${var.queue}"
  assume_role_policy = data.aws_iam_policy_document.own_trust[each.key].json
}

resource "aws_iam_role_policy" "own" {
  for_each = local.kinds

  name = each.key
  role = aws_iam_role.own[each.key].id
  policy = {
    worker   = data.aws_iam_policy_document.worker.json
    sender   = data.aws_iam_policy_document.sender.json
    operator = data.aws_iam_policy_document.operator.json
  }[each.key]
}

resource "aws_iam_role_policy" "own_sends" {
  count = var.make_roles && var.worker_sends ? 1 : 0

  name   = "sends"
  role   = aws_iam_role.own["worker"].id
  policy = data.aws_iam_policy_document.sender.json
}

resource "aws_iam_role_policy" "own_protection" {
  count = var.make_roles && var.ecs_cluster != null ? 1 : 0

  name   = "protection"
  role   = aws_iam_role.own["worker"].id
  policy = data.aws_iam_policy_document.protection[0].json
}

resource "aws_iam_role_policy" "own_metrics" {
  count = var.make_roles && var.cloudwatch_namespace != null ? 1 : 0

  name   = "metrics"
  role   = aws_iam_role.own["worker"].id
  policy = data.aws_iam_policy_document.metrics[0].json
}
