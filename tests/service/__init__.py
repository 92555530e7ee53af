"""The service beside a lone machine: waiting, retrying, sweeping. No cluster, no clock but the test's."""
