variable "queue" {
  description = "The queue that workers serve; <queue>-dlq and <queue>-dead are for its dead letters."
  type        = string
  default     = "penstock"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,75}$", var.queue))
    error_message = "Up to 75 letters, digits, hyphens and underscores; S3 cannot send to a FIFO queue."
  }
}

variable "bucket" {
  description = "The bucket, there already, whose new objects are announced; null: a queue without a bucket."
  type        = string
  default     = null
}

variable "prefixes" {
  description = "Below which prefixes of the bucket: each ends in a slash, none begins with another; \"\": the whole bucket."
  type        = list(string)
  default     = [""]

  validation {
    condition     = alltrue([for prefix in var.prefixes : can(regex("^([A-Za-z0-9!_.'()-]+/)*$", prefix))])
    error_message = "Letters, digits, ! - _ . ' ( ) and slashes, one at the end: S3 wants all else encoded."
  }
}

variable "manage_notification" {
  description = "Set the bucket's notifications? That REPLACES all it has: say false where it has others, and add to those."
  type        = bool
  default     = true
}

variable "table" {
  description = "Where in S3 the table lies that workers write; its quarantine lies beside it. Null: no table in S3."
  type = object({
    bucket = string
    prefix = string
  })
  default = null

  validation {
    condition     = var.table == null ? true : can(regex("^[A-Za-z0-9!_.'()-]+(/[A-Za-z0-9!_.'()-]+)*$", var.table.prefix))
    error_message = "The prefix is made of letters, digits and ! - _ . ' ( ), with slashes between its parts."
  }
}

variable "kms_keys" {
  description = "ARNs of the KMS keys that the objects, or the table, are encrypted with; none for SSE-S3."
  type        = list(string)
  default     = []
}

variable "max_attempts" {
  description = "Penstock's setting max_attempts, or the largest of your handlers: after so many a message is a dead letter."
  type        = number
  default     = 4

  validation {
    condition     = var.max_attempts >= 1 && var.max_attempts <= 100 && floor(var.max_attempts) == var.max_attempts
    error_message = "A whole number from 1 to 100, as the setting."
  }
}

variable "give_backs" {
  description = "How often a stop or a deploy may give a message back beside that: SQS counts each as a receive."
  type        = number
  default     = 16

  validation {
    condition     = var.give_backs >= 3 && floor(var.give_backs) == var.give_backs
    error_message = "A whole number from 3 on: else a few deploys make dead letters of messages that nothing is wrong with."
  }
}

variable "lease_seconds" {
  description = "Penstock's setting lease_seconds. Workers give it with each receive; the queue's own is for all who do not."
  type        = number
  default     = 60

  validation {
    condition     = var.lease_seconds >= 3 && var.lease_seconds <= 43200
    error_message = "From 3 seconds to 12 hours, the longest that SQS lets a message be held."
  }
}

variable "stop_timeout_seconds" {
  description = "Penstock's setting stop_timeout_seconds: the stopTimeout of the ECS task."
  type        = number
  default     = 30

  validation {
    condition     = var.stop_timeout_seconds >= 10
    error_message = "At least 10: stopping, giving back and flushing take 8 of them."
  }
}

variable "retention_seconds" {
  description = "How long a message may wait in the queue."
  type        = number
  default     = 345600 # 4 days

  validation {
    condition     = var.retention_seconds >= 60 && var.retention_seconds < 1209600
    error_message = "From 60 seconds to less than 14 days: dead letters have to be kept for longer, and 14 days is the most."
  }
}

variable "dead_letter_retention_seconds" {
  description = "How long in the two others, counted from the sending and not from the death: so it has to be longer."
  type        = number
  default     = 1209600 # 14 days, the most there is

  validation {
    condition     = var.dead_letter_retention_seconds > 60 && var.dead_letter_retention_seconds <= 1209600
    error_message = "Up to 14 days, and longer than retention_seconds."
  }
}

variable "worker_roles" {
  description = "Names of roles (of ECS tasks, of instances) that get the worker's policy."
  type        = set(string)
  default     = []
}

variable "sender_roles" {
  description = "Names of roles that get the sender's policy."
  type        = set(string)
  default     = []
}

variable "replay_role" {
  description = "Make a role for replay, which sends dead letters back: `penstock replayer`, `penstock dead replay`?"
  type        = bool
  default     = false
}

variable "replay_roles" {
  description = "Names of roles that get the same rights: of workers that replay beside their work."
  type        = set(string)
  default     = []
}

variable "replay_principals" {
  description = "ARNs of who may take on that role; empty: whoever this account lets."
  type        = list(string)
  default     = []
}

# What follows is the module's own; all above is as `penstock init --aws` has it.

variable "monitor_roles" {
  description = "Names of roles that get the monitor's policy."
  type        = set(string)
  default     = []
}

variable "make_roles" {
  description = "Make roles for worker, sender, replayer, monitor and operator: for ECS tasks, or with oidc_provider for pods."
  type        = bool
  default     = false
}

variable "worker_sends" {
  description = "Does a worker also send to the queue: do its handlers send or tick, or hear of published batches?"
  type        = bool
  default     = false
}

variable "ecs_cluster" {
  description = "The name of the ECS cluster whose tasks may protect themselves (ecs_task_protection); null: none may."
  type        = string
  default     = null

  validation {
    condition     = var.ecs_cluster == null ? true : can(regex("^[A-Za-z0-9_-]{1,255}$", var.ecs_cluster))
    error_message = "A cluster's name: letters, digits, hyphens and underscores."
  }
}

variable "oidc_provider" {
  description = "The OIDC provider of an EKS cluster, for pods: its ARN, and its URL without https://. Null: for ECS tasks."
  type = object({
    arn = string
    url = string
  })
  default = null

  validation {
    condition     = var.oidc_provider == null ? true : !startswith(var.oidc_provider.url, "https://")
    error_message = "The URL without https://, as IAM's conditions have it."
  }
}

variable "service_accounts" {
  description = "With oidc_provider: NAMESPACE:NAME of the service account that takes on each role, where it has another."
  type = object({
    worker   = optional(string, "default:penstock")
    sender   = optional(string, "default:penstock-sender")
    replayer = optional(string, "default:penstock-replayer")
    monitor  = optional(string, "default:penstock-monitor")
    operator = optional(string, "default:penstock-operator")
  })
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for account in values(var.service_accounts) : can(regex("^[a-z0-9-]+:[a-z0-9.-]+$", account))])
    error_message = "Each is NAMESPACE:NAME, without wildcards."
  }
}

variable "cloudwatch_namespace" {
  description = "Penstock's setting of that name, where metrics_export has cloudwatch; null: nobody may put metrics."
  type        = string
  default     = null
}
