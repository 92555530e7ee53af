"""What runs for the page have found so far, and what none of them covers: words of docs/PROOF.md, not figures."""

from __future__ import annotations

FOUND = (
    "`upgrade` 654, in its own plan: a lease ended 12 ms before its time. A leader that was cut off had run the "
    "cluster clock to the end of its leader lease; the next one, which did not hear that, went on from less and "
    "granted leases; then the first one led again, and took up its old time: what was granted in between lost up to "
    "half a second. What a leader told is forgotten now when a later one is known (tests/cluster/test_clock.py). The "
    "stamps of all entries are held against the time between them in every run since.",
    "Reviews of what had come since, with tests: thousands of waits that were over together were no backlog, so that "
    "the leader rested after every hundred of them, and a lock stayed free for seconds (level 5, "
    "tests/service/test_sweeper.py); a second copy of a command, late enough to come after the first was taken back, "
    "waited for its lock for nobody (tests/machine/test_locks.py); and in the SDK, of ten ways to lose something to "
    "Ctrl-C, to a proxy's page or to a handler that ends its thread, each has a test "
    "(tests/client/test_closing_threads.py, test_hard_exits.py, test_cut_releases.py, test_session_ends.py, "
    "test_pages_for_answers.py).",
    "A review of this proof: a shared hold beside an exclusive one was not seen in crowds, as the state keeps only "
    "what the last holder asked for, nor one that overtook those who wait; goals were reached by runs in which not "
    "every fault was played. Both are bugs that are planted now, and goals ask for each.",
    "Reviews, with tests: two tasks of one program were in one session's lock, when one that waited gave up in the "
    "moment in which it was released and taken again; a node that looked out for a late command of a client that had "
    "gone took that client's next try out of the queue, or out of the lock; a batch of leases of which one had ended "
    "left the others to a session; leases that were revoked were not told as lost; and Ctrl-C could leave locks and "
    "batches behind (tests/client/test_turns.py, test_session_leases.py, test_cut_acquisitions.py, "
    "tests/service/test_waiting_late.py).",
    "A review of this proof: what a leader's loop logs as an error and goes on from was seen in the workload sdk only. "
    "It fails any run now (`no_errors_logged`).",
    "A review, with a directed schedule: after a restore from a snapshot a node had no entries in its index that are "
    "not valid any more, and batches of what is due ended where those did, so that it ended other leases in an entry "
    "than a node that never stopped (level 5, tests/machine/test_restored_batches.py). The simulation does not find "
    "it when the rule is taken out, in 48 seeds. Since then the bound of an entry is so low in two seeds of five that "
    "it is met all the time, a copy is restored from snapshots all the time and compared with the nodes, and crowds at "
    "shared locks and semaphores are simulated.",
    "The same review: what the end of a resource cuts was not charged to the entry (level 5, same file).",
    "`sdk` 504, in its own plan: a watch that had nothing to tell asked again and again, without waiting, when the "
    "sum of a moment and a pause was rounded down; the run stood still. Whoever does so fails now (`time_goes_on`, "
    "tests/http/test_watch_silence.py).",
    "Reviews, with tests on one machine or with real nodes: a client that called itself as a task is called made "
    "nodes unlike each other; a full table of leases stopped every node, again and again, when a wait for a lock was "
    "granted; thousands of holders of one lock that ended together kept an entry for ten seconds; who had hung up "
    "could be granted a lock that it came late to wait for; and a wait that was told of as over could be granted "
    "(tests/machine/test_task_leases.py, tests/machine/test_many_holders.py, tests/service/test_waiting.py).",
    "Reviews of what tenants see and of the SDK: a token of one prefix was told the holders of others' tombstones, "
    "and could push all else out of the audit trail; an explanation could take longer than it was allowed; an "
    "acquire-batch that was asked for again said that leases were held that had ended; a task whose handler returns "
    "an awaitable was completed without being run, and some twenty more (CHANGELOG.md, tests/security, tests/client).",
    "Three traces in the logs of the nodes at whose ports damaged input was sent: the gRPC library's own, with a "
    "line of another of its threads in the middle, so that they were taken for the node's (tests/fuzz/test_ports.py).",
    "`sdk` 632, in its own plan: the simulation's own: of two tasks that want a lock which their program still has "
    "under a session that it has given up, the second was not expected to be told so.",
    "`graph` 9, in its own plan: the simulation's own: a sweep that is asked for may end what is past its lifetime.",
    "Histories of real clusters in which locks, leases and sessions run out: a refused request was not remembered "
    "under its id, so that an earlier try of it could be granted after its client was told no; and a read told by "
    "the clock of its node that something is over, which the next node denied. Refusals are remembered now (level "
    "4), and what is over is for the log to say (tests/machine/test_requests.py, tests/http/test_ends.py).",
    "Three members that were replaced within five seconds, beside other work: a client that had spoken to the last "
    "of them only was left without a node that it knew. Answers tell of other members now, and who was told of is "
    "asked when nobody else answers (tests/client/test_members.py).",
    "Sieges of a minute, where they had been of twelve seconds: whoever asks too much was let in again step by step "
    "until the node was busy, and the others had felt it for ten seconds by then "
    "(tests/security/test_limits_overload.py).",
    "Damaged input at real ports: one request with a path that is not UTF-8 closed the gRPC port of a node "
    "(tests/rpc/test_stays.py).",
    "A data directory that was put back from an older copy was believed, and could elect a leader without "
    "acknowledged writes (tests/cluster/test_old_files.py).",
    "An error of the disk just after a snapshot was read at start was swallowed; that node could lead, and answered "
    "nothing (failpoint `snapshot.size`, tests/hazards/test_h02_failed_snapshot.py).",
    "Reviews with directed schedules: a leader did not vote for the heir that it had named, agreement to an election "
    "was counted long after, a freeze of all hosts kept background work from the log for four times as long, and a "
    "waiter that was gone stayed in its queue when the cluster was too busy to take it out "
    "(tests/cluster/test_handover_alone.py, tests/lease/test_rule_07_pre_vote.py, tests/cluster/test_lanes.py, "
    "tests/service/test_waiting.py).",
    "`upgrade` 332: a member that was just removed, and did not know the new level, was sent the entry that raised "
    "it, and stopped itself. The level waits for such a member now.",
    "`locks` 549: a leader handed over to a member on slow links, took nothing into its log meanwhile, and leases "
    "stayed past their time. It does so for one shortest election timeout at most now.",
    "`locks` 554: the first message on a new link was lost, and a member was not heard for half a second. It is "
    "repeated with the next heartbeats now.",
    "`tasks` 97: the simulation's own: workers went on asking a node that says it is not ready.",
    "`drift` 164 (by its own plan, tests/sim/test_drift.py): the simulation's own: a read under a lease of the "
    "leader was old, where clocks run at a third or three times the speed of time; that is counted now.",
    "Real clusters, killed as a whole on a slow machine: answers came after six times what their requests allowed, "
    "and the cluster served only after a long time: the log was applied in pieces that were too large, and snapshots "
    "were taken by its size alone (tests/cluster/test_replay_time.py, tests/security/test_limits_overload.py).",
    "A review: a waiter in the queue was told that nothing had happened, and was granted the lock later "
    "(tests/service/test_waiting.py).",
)
"""By runs before the one that the page tells of. Seeds are of the plans that all workloads shared (SHARED=1), and tests
since: tests/sim/test_machine_seeds.py, tests/sim/test_upgrade.py."""

NOT_COVERED = (
    "In the simulation the SDK and the HTTP layer run in one workload only (sdk): locks, sessions, leases, watches, "
    "tasks, resources in circles with their clean-up, shards and holders of copies, without TLS, tokens or gRPC. The "
    "clients of locks, crowds, graph and copies call the service of a node, those of registers and tasks propose to "
    "the node itself. The auditor's timetable and thread are not simulated, its walk is.",
    "In the simulation's workloads a queue has a handful of waiters, and a few leases end at once: 10,000 waiters, "
    "100,000 leases and entries of exact sizes up to 16 MiB are on real nodes (scale) and, each in one directed "
    "simulation, in `make test` (tests/sim/test_long_queue.py, test_mass_expiry.py, test_entry_sizes.py). "
    "Digests are compared at every seventh revision but in registers, and after every refusal of a sample; of the "
    "graph it counts acknowledged clean-ups, whose effects are looked at in chaos and in the workload sdk.",
    "That caps on memory, connections and queues (I18) are seen when one is taken out is in tests of each cap, not "
    "among the planted bugs. In containers, cuts take all links of a node; single ones, bridges and rings are among "
    "real processes. All containers have one release.",
    "That a keeper of a tombstone stays among peers that gossip (I14) is in tests/gossip, and in no part of this page.",
    "I5 makes no promise without a leader, with a stopped one, or in a new leader's first half second. Where a tenth "
    "of all frames of links that stay up is lost, time counts by a quarter, and not at all while frames are lost or "
    "overtaken and a majority needs a snapshot. TCP does neither.",
    "Real disks that lie: a disk that loses what it has confirmed, on a majority at once. A data directory that was "
    "put back from a copy that holds all that the others remember of its node (over their own restarts to within "
    "16,384 entries), or from an older one that was started more than eight times before any of them met it.",
    "Taking out `Service.still_held` (a retried acquire is told of a grant that has ended since) is not found by the "
    "simulation, in 60 seeds: its clients count from their first attempt, so it does them no harm. "
    "tests/service/test_waiting.py finds it.",
    "Wall clocks are not in the simulation, as no code there decides anything by one: tests/meta bans them in the "
    "machine, and answers over HTTP only tell them. On real nodes they are stepped in tests/api/test_wall_clock.py, "
    "not in the robustness run. A kill in the middle of a snapshot's installation is in "
    "tests/processes/test_followers.py, not there.",
    "Links of real clusters flap for seconds, and may cost one term each time: that it is one a minute at most, "
    "however long they do, is shown in simulation only (tests/cluster/test_flapping.py).",
    "Clusters in network namespaces need root: without it there are none, which the section on real clusters says "
    "then. They have no frames delayed, doubled or corrupted: packet filters only lose. That is done to those behind "
    "proxies.",
    "At real ports, administrators' operations get only bodies that are refused, and those without a body (a backup) "
    "never an administrator's token; gRPC gets only calls without a token, and what its library prints to standard "
    "error is counted, not bounded. Where a tenant's input is taken, the digests of nodes are compared with each "
    "other only. One input has 64 KiB at most; larger bodies are refused in tests/http and tests/security.",
    "In the section on scale: 200 of the 10,000 that wait are granted. The bound on the end of 100,000 leases is our "
    "own, as that of I5 is for what fits into one entry. Slow sockets send one piece of a request, and then nothing; "
    "those that send byte after byte are in tests/security. The first seconds of a load are told, and not judged by "
    "themselves.",
    "No part of this page, but in `make test`: a node without descriptors (tests/security/test_limits.py, "
    "tests/transport/test_hostile.py), references that come to circles while real nodes collect them "
    "(tests/api/test_cycles_change.py), foreign and expired certificates, tokens and ids of others (tests/security), "
    "a provider that fails, loses its connections or whose packets vanish without a word, and a full disk under a "
    "guard (tests/client/test_valve.py, test_vanished_packets.py, test_full_disk.py).",
    "Failover is judged by kills of a leader that has nothing else to do; beside the other faults of real clusters "
    "it takes longer, which their section tells and no goal judges. A node's memory in a siege is compared with that "
    "in the one before, of three: that it stays where it is over many is not shown.",
    "Entries of exact sizes up to 16 MiB go through a cluster with a register machine; over HTTP a body has 4 MiB.",
    "Mixed versions: a rolling upgrade from level 1 to the newest one is simulated under faults "
    "(tests/sim/test_upgrade.py) and done with real processes (tests/processes/test_upgrade.py), and logs and "
    "snapshots that the release before levels wrote are replayed (tests/data). In all of them this release stands "
    "for the older one, by `level_at_most`; no run of this page has two releases, and there is one version of the "
    "peer protocol so far.",
)
