# A queue for Penstock as a module: the same queues, bucket and policies as `penstock init --aws` writes, byte for byte,
# and with make_roles the roles besides. README.md shows how it is used.

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
