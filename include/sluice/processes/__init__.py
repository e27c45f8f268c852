"""Operating system processes, and waiting for what happens in them.

| module | purpose |
|---|---|
| `process_identity` | the recorded identity of a process, and whether it lives |
| `host_processes` | the processes of this host, their descendants; identify and end the process of a driver |
| `deadline` | wait until something is true or a deadline has passed; run several steps up to one |
| `driver_watch` | limit the size of a driver's log; notice what the kernel kills for want of memory |
"""
