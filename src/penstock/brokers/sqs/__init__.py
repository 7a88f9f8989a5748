"""Queues on SQS. docs/run/sqs.md says how they work and what they cost; where to find what:

- `broker`: the broker itself, and what it promises
- `taking`: what whoever asks gets, of `receiving` (calls that receive) and `listening` (long polls while a worker has
  room); `held`: what those brought before it was asked for; `received`: a delivery
- `settling`: ending deliveries; `deaths`: what a dead letter says; `leases`: extending; `settled`: what ended already
- `sending`: putting messages into a queue; `batches`: calls of ten whose entries fail apart
- `queues`: from a name to a queue, its dead-letter queue, and its creation
- `envelope`: how a message is written where SQS takes ten attributes and no control characters
- `api`: clients and calls; `faults`: what AWS's errors mean
"""

from penstock.brokers.sqs.broker import SqsBroker

__all__ = ["SqsBroker"]
