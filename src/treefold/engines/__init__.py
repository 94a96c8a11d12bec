"""What carries bytes between hosts: engines that users have, each behind the same seam."""
