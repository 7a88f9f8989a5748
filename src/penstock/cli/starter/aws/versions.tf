# A queue for Penstock, its two DLQs, the bucket's notifications, and IAM policies.
#
#   terraform init && terraform plan     (or: tofu)
#
# The values given to `penstock init --aws` are in terraform.tfvars.json; variables.tf lists all variables.

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
  region = var.region

  default_tags {
    tags = var.tags
  }
}

data "aws_partition" "current" {}

data "aws_caller_identity" "current" {}
