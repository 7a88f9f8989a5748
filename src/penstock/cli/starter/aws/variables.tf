variable "region" {
  description = "The AWS region; null: the region of your environment."
  type        = string
  default     = null
}

variable "tags" {
  description = "Tags for all resources of this module."
  type        = map(string)
  default     = {}
}

variable "queue" {
  description = "The queue that workers serve; its DLQs are <queue>-dlq and <queue>-dead."
  type        = string
  default     = "penstock"

  validation {
    condition     = can(regex("^[A-Za-z0-9_-]{1,75}$", var.queue))
    error_message = "Up to 75 letters, digits, hyphens and underscores; S3 cannot send to a FIFO queue."
  }
}

variable "bucket" {
  description = "The existing bucket that sends notifications; null: a queue without a bucket."
  type        = string
  default     = null
}

variable "prefixes" {
  description = "Notify only for objects below these prefixes: each ends in a slash, none begins with another; \"\": the whole bucket."
  type        = list(string)
  default     = [""]

  validation {
    condition     = alltrue([for prefix in var.prefixes : can(regex("^([A-Za-z0-9!_.'()-]+/)*$", prefix))])
    error_message = "Letters, digits, ! - _ . ' ( ) and slashes, one at the end: S3 requires others encoded."
  }
}

variable "manage_notification" {
  description = "Set the bucket's notifications? That REPLACES all existing ones: if there are others, set false and add to those."
  type        = bool
  default     = true
}

variable "table" {
  description = "The table in S3 that workers write, with its quarantine beside it. Null: no table in S3."
  type = object({
    bucket = string
    prefix = string
  })
  default = null

  validation {
    condition     = var.table == null ? true : can(regex("^[A-Za-z0-9!_.'()-]+(/[A-Za-z0-9!_.'()-]+)*$", var.table.prefix))
    error_message = "Use letters, digits and ! - _ . ' ( ), with slashes between its parts."
  }
}

variable "kms_keys" {
  description = "ARNs of the KMS keys that encrypt the objects or the table; none for SSE-S3."
  type        = list(string)
  default     = []
}

variable "max_attempts" {
  description = "Penstock's setting objects.max_attempts, or the largest of your handlers: after this many attempts a message is dead-lettered."
  type        = number
  default     = 4

  validation {
    condition     = var.max_attempts >= 1 && var.max_attempts <= 100 && floor(var.max_attempts) == var.max_attempts
    error_message = "A whole number from 1 to 100, like the setting."
  }
}

variable "give_backs" {
  description = "Receives beyond max_attempts, for releases by stops and deploys: SQS counts each as a receive."
  type        = number
  default     = 16

  validation {
    condition     = var.give_backs >= 3 && floor(var.give_backs) == var.give_backs
    error_message = "A whole number of at least 3: otherwise a few deploys dead-letter good messages."
  }
}

variable "lease_seconds" {
  description = "Penstock's setting worker.lease, in seconds. Workers set it with each receive; other readers use the queue's own."
  type        = number
  default     = 60

  validation {
    condition     = var.lease_seconds >= 3 && var.lease_seconds <= 43200
    error_message = "From 3 seconds to 12 hours, the limit of SQS."
  }
}

variable "stop_timeout_seconds" {
  description = "Penstock's setting worker.stop_timeout, in seconds: the stopTimeout of the ECS task."
  type        = number
  default     = 30

  validation {
    condition     = var.stop_timeout_seconds >= 10
    error_message = "At least 10: stopping, releasing and flushing take 8 of them."
  }
}

variable "retention_seconds" {
  description = "How long a message may wait in the queue."
  type        = number
  default     = 345600 # 4 days

  validation {
    condition     = var.retention_seconds >= 60 && var.retention_seconds < 1209600
    error_message = "From 60 seconds to less than 14 days: dead letters must be kept longer, for at most 14 days."
  }
}

variable "dead_letter_retention_seconds" {
  description = "How long in the two DLQs, counted from the first send, not from the failure: it must be longer."
  type        = number
  default     = 1209600 # 14 days, the maximum

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

variable "dead_letters_replay" {
  description = "Penstock's setting dead_letters.replay: do workers send dead letters back automatically?"
  type        = bool
  default     = false
}

variable "dead_letters_archive" {
  description = "Is Penstock's setting dead_letters.archive set: may workers take expiring dead letters from both DLQs?"
  type        = bool
  default     = false
}

variable "replay_role" {
  description = "Create a role for people who send dead letters back with `penstock dead replay`?"
  type        = bool
  default     = false
}

variable "replay_principals" {
  description = "ARNs of principals that may assume that role; empty: any that this account allows."
  type        = list(string)
  default     = []
}
