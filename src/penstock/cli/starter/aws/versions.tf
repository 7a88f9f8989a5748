# A queue for Penstock, its two tiers of dead letters, the bucket's notifications, and who may do what.
#
#   terraform init && terraform plan     (or: tofu)
#
# What `penstock init --aws` was told stands in terraform.tfvars.json; variables.tf says what else can be set.

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
