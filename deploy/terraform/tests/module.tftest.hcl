# For `terraform test`, without AWS: the provider is a mock. It needs the provider's schemas, so run `terraform init` first.

mock_provider "aws" {
  mock_resource "aws_sqs_queue" {
    defaults = {
      arn = "arn:aws:sqs:eu-west-1:123456789012:orders"
      id  = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    }
  }

  mock_resource "aws_iam_role" {
    defaults = {
      arn = "arn:aws:iam::123456789012:role/orders"
    }
  }

  mock_resource "aws_iam_policy" {
    defaults = {
      arn = "arn:aws:iam::123456789012:policy/orders"
    }
  }

  mock_data "aws_iam_policy_document" {
    defaults = {
      json = "{\"Version\": \"2012-10-17\", \"Statement\": []}"
    }
  }

  mock_data "aws_caller_identity" {
    defaults = {
      account_id = "123456789012"
    }
  }

  mock_data "aws_partition" {
    defaults = {
      partition = "aws"
    }
  }
}

run "defaults" {
  variables {
    queue = "orders"
  }

  assert {
    condition     = jsondecode(aws_sqs_queue.source.redrive_policy).maxReceiveCount == 4 + 16
    error_message = "Receives must leave room for attempts and deploys."
  }

  assert {
    condition     = jsondecode(aws_sqs_queue.dlq.redrive_policy).maxReceiveCount == 1000
    error_message = "SQS must not move dead letters to the final DLQ at their first receive."
  }

  assert {
    condition = alltrue([
      for tier in [aws_sqs_queue.dlq, aws_sqs_queue.dead] :
      tier.message_retention_seconds > aws_sqs_queue.source.message_retention_seconds
    ])
    error_message = "Dead letters keep their age, so they need a longer retention."
  }

  assert {
    condition     = [aws_sqs_queue.source.name, aws_sqs_queue.dlq.name, aws_sqs_queue.dead.name] == ["orders", "orders-dlq", "orders-dead"]
    error_message = "Workers find the DLQs by these names."
  }

  assert {
    condition     = length(aws_s3_bucket_notification.created) + length(aws_iam_role.own) + length(aws_iam_role.replay) == 0
    error_message = "Notifications and roles are created only on request."
  }
}

run "values_of_the_settings" {
  variables {
    queue         = "orders"
    max_attempts  = 7
    give_backs    = 30
    lease_seconds = 45.5

    dead_letters_replay  = true
    dead_letters_archive = true
  }

  assert {
    condition     = output.redrive.max_receive_count == 37
    error_message = "The sum of max_attempts and give_backs."
  }

  assert {
    condition     = aws_sqs_queue.source.visibility_timeout_seconds == 46
    error_message = "SQS counts whole seconds."
  }

  assert {
    condition     = output.worker_environment.PENSTOCK_BROKER == "sqs://eu-west-1"
    error_message = "The broker is the region of the queue."
  }

  assert {
    condition     = output.worker_environment.PENSTOCK_DEAD_LETTERS_REPLAY == "true"
    error_message = "Workers replay if their role may."
  }
}

run "bucket_and_roles" {
  variables {
    queue                = "orders"
    bucket               = "shop-landing"
    prefixes             = ["a/", "b/c/"]
    make_roles           = true
    worker_sends         = true
    ecs_cluster          = "shop"
    cloudwatch_namespace = "Shop"
  }

  assert {
    condition     = [for queue in aws_s3_bucket_notification.created[0].queue : queue.filter_prefix] == ["a/", "b/c/"]
    error_message = "Each prefix has a notification."
  }

  assert {
    condition     = toset(keys(output.role_arns)) == toset(["worker", "sender", "operator"])
    error_message = "One role for workers, one for senders, one for people."
  }

  assert {
    condition     = length(aws_iam_role_policy.own_metrics) == 1
    error_message = "Workers may put metrics."
  }
}

run "a_bucket_with_other_notifications" {
  variables {
    bucket              = "shop-landing"
    manage_notification = false
  }

  assert {
    condition     = length(aws_s3_bucket_notification.created) == 0 && length(aws_sqs_queue_policy.bucket_sends) == 1
    error_message = "The queue accepts notifications, and the configuration of the bucket is not changed."
  }
}

run "fifo_is_refused" {
  command = plan

  variables {
    queue = "orders.fifo"
  }

  expect_failures = [var.queue]
}

run "no_room_for_deploys_is_refused" {
  command = plan

  variables {
    give_backs = 2
  }

  expect_failures = [var.give_backs]
}

run "a_shorter_retention_of_dead_letters_is_refused" {
  command = plan

  variables {
    retention_seconds             = 864000
    dead_letter_retention_seconds = 864000
  }

  expect_failures = [aws_sqs_queue.source]
}

run "more_receives_than_the_dlq_allows_are_refused" {
  command = plan

  variables {
    max_attempts = 100
    give_backs   = 900
  }

  expect_failures = [aws_sqs_queue.source]
}

run "other_service_accounts_keep_their_default_names" {
  variables {
    make_roles       = true
    oidc_provider    = { arn = "arn:aws:iam::123456789012:oidc-provider/oidc.example", url = "oidc.example" }
    service_accounts = { worker = "shop:penstock" }
  }

  assert {
    condition     = var.service_accounts.operator == "default:penstock-operator" && length(output.role_arns) == 3
    error_message = "Each role has a service account."
  }
}

run "wildcards_for_pods_are_refused" {
  command = plan

  variables {
    make_roles = true
    service_accounts = {
      worker = "shop:*"
    }
  }

  expect_failures = [var.service_accounts]
}

run "values_that_aws_or_penstock_refuses" {
  command = plan

  variables {
    max_attempts                  = 0
    lease_seconds                 = 43201
    stop_timeout_seconds          = 9
    retention_seconds             = 59
    dead_letter_retention_seconds = 1209601
    ecs_cluster                   = "a/b"
  }

  expect_failures = [
    var.max_attempts,
    var.lease_seconds,
    var.stop_timeout_seconds,
    var.retention_seconds,
    var.dead_letter_retention_seconds,
    var.ecs_cluster,
  ]
}
