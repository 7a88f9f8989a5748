# A queue for Penstock as a module: the queues, notifications and policies that `penstock init --aws` writes, byte for byte,
# and with make_roles also roles. README.md shows how to use it.

terraform {
  required_version = ">= 1.3"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}
