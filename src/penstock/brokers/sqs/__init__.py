"""Queues on SQS. docs/run/sqs.md describes their behaviour and cost.

- `broker`: the broker and its guarantees
- `receive`: receive calls and polled messages; `listener`: long polls while a worker has free slots
- `leases`: extend visibility; `settle`: delete, make visible again, dead-letter
- `send`: send in batches; `calls`: batch calls whose entries fail one by one, and parallel calls
- `queues`: resolve, create and inspect queues; `move`: SQS's own redrive; `limits`: quotas of SQS
- `envelope`: how a message is encoded; `lambda_records`: deliveries of an event source mapping
- `client`: clients and the meaning of AWS errors; `cloudwatch`: queue ages; `facts`: checks for `penstock doctor`
"""

from penstock.brokers.sqs.broker import SqsBroker

__all__ = ["SqsBroker"]
