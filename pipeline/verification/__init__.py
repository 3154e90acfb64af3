"""Do the rows and the objects still agree? Looks both ways, on a live system, and mends what can be made again.

`attachments` walks from the rows to the objects, `unknown_objects` from the storage's own list to the rows. Both yield
a Step at a time, hold no more than that in memory, and no transaction between two. What each finding means and asks
for is docs/verify.md. StorageUnavailable, raised by either, means that the storage is away: nothing about its objects.
"""

from pipeline.verification.findings import Finding, Kind, Step
from pipeline.verification.walks import attachments, unknown_objects

__all__ = ["Finding", "Kind", "Step", "attachments", "unknown_objects"]
