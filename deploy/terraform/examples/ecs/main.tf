# A queue with the notifications of a bucket, and roles for the tasks of deploy/ecs.

terraform {
  required_version = ">= 1.3"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

provider "aws" {
  region = "eu-west-1"

  default_tags {
    tags = {
      service = "shop"
    }
  }
}

module "orders" {
  source = "../.."

  queue    = "orders"
  bucket   = "shop-landing"
  prefixes = ["orders/"]
  table = {
    bucket = "shop-lake"
    prefix = "orders"
  }

  # As in deploy/ecs/worker.task.json.
  stop_timeout_seconds = 120
  dead_letters_replay  = true

  make_roles  = true
  ecs_cluster = "shop"
}

output "worker_environment" {
  description = "For the worker's container."
  value       = module.orders.worker_environment
}

output "task_role_arns" {
  description = "taskRoleArn of workers, and of a task that an operator starts."
  value       = module.orders.role_arns
}
