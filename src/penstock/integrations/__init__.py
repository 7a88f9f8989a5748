"""Entry points for other platforms: the automatic replayer as an AWS Lambda function."""
