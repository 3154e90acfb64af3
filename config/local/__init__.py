"""The whole of Holdfast on one machine: private PostgreSQL and RabbitMQ, and our processes beside them.

`python -m config.local up` runs everything in the foreground, `demo` sends sample files through it, and
`exec -- COMMAND` runs one command with only the two services. Nothing outside `.local` is changed, except
that PostgreSQL run by root keeps its data in a private folder under `/var/tmp`.
"""
