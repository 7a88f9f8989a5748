# terraform test, without AWS: the provider is a mock. It wants the provider's schemas, so `terraform init` comes first.

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

run "as_it_is" {
  variables {
    queue = "orders"
  }

  assert {
    condition     = jsondecode(aws_sqs_queue.source.redrive_policy).maxReceiveCount == 4 + 16
    error_message = "Attempts and deploys have to fit into the receives."
  }

  assert {
    condition     = jsondecode(aws_sqs_queue.dlq.redrive_policy).maxReceiveCount == 1000
    error_message = "The first tier must not hand its letters on at the first look."
  }

  assert {
    condition = alltrue([
      for tier in [aws_sqs_queue.dlq, aws_sqs_queue.dead] :
      tier.message_retention_seconds > aws_sqs_queue.source.message_retention_seconds
    ])
    error_message = "Dead letters keep the age they had."
  }

  assert {
    condition     = [aws_sqs_queue.source.name, aws_sqs_queue.dlq.name, aws_sqs_queue.dead.name] == ["orders", "orders-dlq", "orders-dead"]
    error_message = "Workers find the tiers by these names."
  }

  assert {
    condition     = length(aws_s3_bucket_notification.created) + length(aws_iam_role.own) + length(aws_iam_role.replay) == 0
    error_message = "What nobody asked for is not made."
  }
}

run "numbers_of_the_settings" {
  variables {
    queue         = "orders"
    max_attempts  = 7
    give_backs    = 30
    lease_seconds = 45.5
  }

  assert {
    condition     = output.redrive.max_receive_count == 37
    error_message = "max_attempts and give_backs together."
  }

  assert {
    condition     = aws_sqs_queue.source.visibility_timeout_seconds == 46
    error_message = "SQS counts whole seconds."
  }

  assert {
    condition     = output.worker_environment.PENSTOCK_BROKER == "sqs://eu-west-1"
    error_message = "The broker is named by the queue's region."
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
    error_message = "Each prefix is announced."
  }

  assert {
    condition     = toset(keys(output.role_arns)) == toset(["worker", "sender", "replayer", "monitor", "operator"])
    error_message = "A role for each kind of process, and for a person."
  }

  assert {
    condition     = toset(keys(aws_iam_role_policy.own_metrics)) == toset(["worker", "replayer", "monitor"])
    error_message = "Who has metrics may put them."
  }
}

run "a_bucket_whose_notifications_are_somebody_elses" {
  variables {
    bucket              = "shop-landing"
    manage_notification = false
  }

  assert {
    condition     = length(aws_s3_bucket_notification.created) == 0 && length(aws_sqs_queue_policy.bucket_sends) == 1
    error_message = "The queue takes what the bucket sends, and the bucket's configuration is left alone."
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

run "dead_letters_kept_for_less_are_refused" {
  command = plan

  variables {
    retention_seconds             = 864000
    dead_letter_retention_seconds = 864000
  }

  expect_failures = [aws_sqs_queue.source]
}

run "receives_beyond_the_first_tiers_are_refused" {
  command = plan

  variables {
    max_attempts = 100
    give_backs   = 900
  }

  expect_failures = [aws_sqs_queue.source]
}

run "a_service_account_that_is_not_named_has_its_usual_name" {
  variables {
    make_roles       = true
    oidc_provider    = { arn = "arn:aws:iam::123456789012:oidc-provider/oidc.example", url = "oidc.example" }
    service_accounts = { worker = "shop:penstock" }
  }

  assert {
    condition     = var.service_accounts.monitor == "default:penstock-monitor" && length(output.role_arns) == 5
    error_message = "Each role has an account, whichever of them are named."
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

run "numbers_that_aws_or_penstock_would_refuse" {
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
