output "worker_environment" {
  description = "For the worker's container; set the stopTimeout of its task to PENSTOCK_WORKER_STOP_TIMEOUT."
  value = {
    PENSTOCK_BROKER               = "sqs://${split(":", aws_sqs_queue.source.arn)[3]}"
    PENSTOCK_WORKER_LEASE         = tostring(var.lease_seconds)
    PENSTOCK_OBJECTS_MAX_ATTEMPTS = tostring(var.max_attempts)
    PENSTOCK_WORKER_STOP_TIMEOUT  = tostring(var.stop_timeout_seconds)
    PENSTOCK_DEAD_LETTERS_REPLAY  = tostring(var.dead_letters_replay)
  }
}

output "queue_urls" {
  description = "The queue and its two DLQs."
  value = {
    source = aws_sqs_queue.source.url
    dlq    = aws_sqs_queue.dlq.url
    dead   = aws_sqs_queue.dead.url
  }
}

output "policy_arns" {
  description = "Attach these to the roles of workers and senders."
  value = {
    worker = aws_iam_policy.worker.arn
    sender = aws_iam_policy.sender.arn
  }
}

output "policy_documents" {
  description = "The same policies as documents, for roles that are created elsewhere."
  value = {
    worker = data.aws_iam_policy_document.worker.json
    sender = data.aws_iam_policy_document.sender.json
    replay = data.aws_iam_policy_document.replay.json
  }
}

output "replay_role_arn" {
  description = "The role that sends dead letters back; null unless replay_role is true."
  value       = var.replay_role ? aws_iam_role.replay[0].arn : null
}
