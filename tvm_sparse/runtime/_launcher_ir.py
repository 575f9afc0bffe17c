"""LLVM IR of the parallel launcher that compiled kernels call instead of TVM's own.

In: nothing but the target's data layout and triple. Out: IR text for TVM's LLVM loader. The
launcher has the C signature of ``TVMBackendParallelLaunch``. It cuts a parallel loop into a few
tasks for each thread, gives each thread its own contiguous group of tasks, and lets a thread
that has finished its group take tasks from the others. The threads come from the OpenMP
runtime that the process has already loaded (PyTorch's, MKL's, numba's), so that no second set of
spinning workers competes for the cores; without one, from a small pool of its own. OpenMP's workers
spin at barriers, which on a machine that others keep busy stalls a loop for whole time slices; a
loop that lost over 2 ms so is followed by a second in which the own pool, which gives way, is used.

The state shared by all launchers of a process is one block of memory, laid out by
``minimal.ThreadControl``; the offsets below are those of its fields.
"""

from __future__ import annotations

import json

MAX_THREADS = 256

# Offsets into the control block; `minimal.ThreadControl` lays out the same fields.
_NUM_THREADS = 0
_TASKS_PER_THREAD = 4
_OMP_PARALLEL = 8
_OMP_THREAD_NUM = 16
_OMP_MAX_THREADS = 24
_LIBRARY_CHANGES = 32
_REFRESH = 40
_SERIAL = 48
_DEFAULT_THREADS = 52
_OMP_TEAM_SIZE = 56
_AVOID_OPENMP_UNTIL = 64
_POOL_BUSY = 128
_POOL_SIZE = 132
_POOL_PENDING = 192
_POOL_WORKERS = 256
_WORKER_STRIDE = 128
_WORKER_REGION = 64
_WORKER_CONTROL = 72
_WORKER_INDEX = 80

_REGION_SOURCE = """
; lambda, closure, omp_get_thread_num, counters, groups, tasks of a group, failed, arrived,
; omp_get_num_threads, when the caller began its tasks, when it ended them
%Region = type {{ ptr, ptr, ptr, ptr, i32, i32, i32, i32, ptr, i64, i64 }}
%Env = type {{ ptr, i32 }}

@tvm_sparse_control = internal global ptr null
@tvm_sparse_error_kind = internal constant [13 x i8] c"RuntimeError\\00"
@tvm_sparse_error_text = internal constant [33 x i8] c"a task of a parallel loop failed\\00"

declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)
declare i32 @dl_iterate_phdr(ptr, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @sem_init(ptr, i32, i32)
declare i32 @sem_post(ptr)
declare i32 @sem_wait(ptr)
declare i32 @sem_trywait(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)

; Nanoseconds of the monotonic clock.
define internal i64 @tvm_sparse_now() {{
  %time = alloca {{ i64, i64 }}
  %code = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i8, ptr %time, i64 8
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}

; Run tasks until none is left, beginning with the own group.
define internal void @tvm_sparse_drain(ptr %region, i32 %me) {{
entry:
  %env = alloca %Env
  %lambda = load ptr, ptr %region
  %closure.at = getelementptr %Region, ptr %region, i32 0, i32 1
  %closure = load ptr, ptr %closure.at
  %counters.at = getelementptr %Region, ptr %region, i32 0, i32 3
  %counters = load ptr, ptr %counters.at
  %groups.at = getelementptr %Region, ptr %region, i32 0, i32 4
  %groups = load i32, ptr %groups.at
  %share.at = getelementptr %Region, ptr %region, i32 0, i32 5
  %share = load i32, ptr %share.at
  %failed.at = getelementptr %Region, ptr %region, i32 0, i32 6
  %total = mul i32 %groups, %share
  store ptr null, ptr %env
  %total.at = getelementptr %Env, ptr %env, i32 0, i32 1
  store i32 %total, ptr %total.at
  br label %next_group
next_group:
  %step = phi i32 [ 0, %entry ], [ %step.inc, %group_empty ]
  %all_done = icmp uge i32 %step, %groups
  br i1 %all_done, label %exit, label %enter_group
enter_group:
  %shifted = add i32 %me, %step
  %group = urem i32 %shifted, %groups
  %counter = getelementptr [16 x i32], ptr %counters, i32 %group, i32 0
  br label %claim
claim:
  %slot = atomicrmw add ptr %counter, i32 1 monotonic
  %claimed = icmp ult i32 %slot, %share
  br i1 %claimed, label %run, label %group_empty
group_empty:
  %step.inc = add i32 %step, 1
  br label %next_group
run:
  %first = mul i32 %group, %share
  %task = add i32 %first, %slot
  %code = call i32 %lambda(i32 %task, ptr %env, ptr %closure)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %note_failure, label %claim
note_failure:
  store atomic i32 1, ptr %failed.at monotonic, align 4
  br label %claim
exit:
  ret void
}}

; The master waits here, giving way, for the others: at the barrier of OpenMP it would spin on the
; very core that a preempted worker may need, until the scheduler's time slice (milliseconds) ends.
define internal void @tvm_sparse_openmp_worker(ptr %region) {{
entry:
  %get.at = getelementptr %Region, ptr %region, i32 0, i32 2
  %get = load ptr, ptr %get.at
  %me = call i32 %get()
  %arrived.at = getelementptr %Region, ptr %region, i32 0, i32 7
  %is_master = icmp eq i32 %me, 0
  br i1 %is_master, label %count_team, label %help
help:
  call void @tvm_sparse_drain(ptr %region, i32 %me)
  %helped = atomicrmw add ptr %arrived.at, i32 1 acq_rel
  ret void
count_team:
  %began.at = getelementptr %Region, ptr %region, i32 0, i32 9
  %began = call i64 @tvm_sparse_now()
  store i64 %began, ptr %began.at
  call void @tvm_sparse_drain(ptr %region, i32 0)
  %ended.at = getelementptr %Region, ptr %region, i32 0, i32 10
  %ended = call i64 @tvm_sparse_now()
  store i64 %ended, ptr %ended.at
  %first = atomicrmw add ptr %arrived.at, i32 1 acq_rel
  %team_size.at = getelementptr %Region, ptr %region, i32 0, i32 8
  %team_size.fn = load ptr, ptr %team_size.at
  %team = call i32 %team_size.fn()
  br label %wait
wait:
  %spins = phi i32 [ 0, %count_team ], [ %spins.inc, %wait_more ], [ 0, %give_way ]
  %arrived = load atomic i32, ptr %arrived.at acquire, align 4
  %all_here = icmp uge i32 %arrived, %team
  br i1 %all_here, label %done, label %wait_more
wait_more:
  %spins.inc = add i32 %spins, 1
  %tired = icmp ugt i32 %spins.inc, 2000
  br i1 %tired, label %give_way, label %wait
give_way:
  %yielded = call i32 @sched_yield()
  br label %wait
done:
  ret void
}}

; A worker of the own pool: poll for a moment, then sleep on its semaphore.
define internal ptr @tvm_sparse_pool_worker(ptr %worker) {{
entry:
  %region.at = getelementptr i8, ptr %worker, i64 {worker_region}
  %control.at = getelementptr i8, ptr %worker, i64 {worker_control}
  %index.at = getelementptr i8, ptr %worker, i64 {worker_index}
  %control = load ptr, ptr %control.at
  %index = load i32, ptr %index.at
  %pending.at = getelementptr i8, ptr %control, i64 {pool_pending}
  br label %idle
idle:
  br label %poll
poll:
  %tries = phi i32 [ 0, %idle ], [ %tries.inc, %poll_again ]
  %got = call i32 @sem_trywait(ptr %worker)
  %ready = icmp eq i32 %got, 0
  br i1 %ready, label %work, label %poll_again
poll_again:
  %tries.inc = add i32 %tries, 1
  %patient = icmp ult i32 %tries.inc, {polls}
  br i1 %patient, label %poll, label %sleep
sleep:
  %woken = call i32 @sem_wait(ptr %worker)
  %interrupted = icmp ne i32 %woken, 0
  br i1 %interrupted, label %sleep, label %work
work:
  %region = load ptr, ptr %region.at
  call void @tvm_sparse_drain(ptr %region, i32 %index)
  %left = atomicrmw sub ptr %pending.at, i32 1 acq_rel
  br label %idle
}}

; Grow the pool to `wanted` workers; returns how many there are.
define internal i32 @tvm_sparse_pool_grow(ptr %control, i32 %wanted) {{
entry:
  %thread = alloca i64
  %size.at = getelementptr i8, ptr %control, i64 {pool_size}
  br label %check
check:
  %size = load i32, ptr %size.at
  %enough = icmp uge i32 %size, %wanted
  br i1 %enough, label %done, label %create
create:
  %size.wide = zext i32 %size to i64
  %offset = mul i64 %size.wide, {worker_stride}
  %base = add i64 %offset, {pool_workers}
  %worker = getelementptr i8, ptr %control, i64 %base
  %control.at = getelementptr i8, ptr %worker, i64 {worker_control}
  %index.at = getelementptr i8, ptr %worker, i64 {worker_index}
  %index = add i32 %size, 1
  %made_semaphore = call i32 @sem_init(ptr %worker, i32 0, i32 0)
  store ptr %control, ptr %control.at
  store i32 %index, ptr %index.at
  %code = call i32 @pthread_create(ptr %thread, ptr null, ptr @tvm_sparse_pool_worker, ptr %worker)
  %refused = icmp ne i32 %code, 0
  br i1 %refused, label %done, label %created
created:
  %handle = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %handle)
  store i32 %index, ptr %size.at
  br label %check
done:
  ret i32 %size
}}

; Run a region on the own pool; returns 0 when the pool is busy with another caller's region.
define internal i32 @tvm_sparse_pool_run(ptr %control, ptr %region, i32 %threads) {{
entry:
  %busy.at = getelementptr i8, ptr %control, i64 {pool_busy}
  %pending.at = getelementptr i8, ptr %control, i64 {pool_pending}
  %pair = cmpxchg ptr %busy.at, i32 0, i32 1 acquire monotonic
  %taken = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %taken, label %grow, label %refuse
refuse:
  ret i32 0
grow:
  %wanted = sub i32 %threads, 1
  %size = call i32 @tvm_sparse_pool_grow(ptr %control, i32 %wanted)
  %fewer = icmp ult i32 %size, %wanted
  %used = select i1 %fewer, i32 %size, i32 %wanted
  store atomic i32 %used, ptr %pending.at release, align 4
  br label %post
post:
  %i = phi i32 [ 0, %grow ], [ %i.inc, %post_one ]
  %posted_all = icmp uge i32 %i, %used
  br i1 %posted_all, label %own_share, label %post_one
post_one:
  %i.wide = zext i32 %i to i64
  %offset = mul i64 %i.wide, {worker_stride}
  %base = add i64 %offset, {pool_workers}
  %worker = getelementptr i8, ptr %control, i64 %base
  %region.at = getelementptr i8, ptr %worker, i64 {worker_region}
  store ptr %region, ptr %region.at
  %posted = call i32 @sem_post(ptr %worker)
  %i.inc = add i32 %i, 1
  br label %post
own_share:
  call void @tvm_sparse_drain(ptr %region, i32 0)
  br label %wait
wait:
  %spins = phi i32 [ 0, %own_share ], [ %spins.inc, %wait_more ], [ 0, %give_way ]
  %pending = load atomic i32, ptr %pending.at acquire, align 4
  %finished = icmp eq i32 %pending, 0
  br i1 %finished, label %done, label %wait_more
wait_more:
  %spins.inc = add i32 %spins, 1
  %tired = icmp ugt i32 %spins.inc, 1000
  br i1 %tired, label %give_way, label %wait
give_way:
  %yielded = call i32 @sched_yield()
  br label %wait
done:
  store atomic i32 0, ptr %busy.at release, align 4
  ret i32 1
}}

; dl_iterate_phdr callback: the count of libraries loaded and unloaded so far, from the first one.
define internal i32 @tvm_sparse_count_libraries(ptr %info, i64 %size, ptr %count) {{
  %added.at = getelementptr i8, ptr %info, i64 32
  %removed.at = getelementptr i8, ptr %info, i64 40
  %added = load i64, ptr %added.at
  %removed = load i64, ptr %removed.at
  %sum = add i64 %added, %removed
  store i64 %sum, ptr %count
  ret i32 1
}}

define internal i32 @tvm_sparse_launch(ptr %lambda, ptr %closure, i32 %requested) {{
entry:
  %region = alloca %Region, align 64
  %counters = alloca [{max_threads} x [16 x i32]], align 64
  %changes = alloca i64
  %env = alloca %Env
  %control = load ptr, ptr @tvm_sparse_control
  %serial.at = getelementptr i8, ptr %control, i64 {serial}
  %serial_only = load i32, ptr %serial.at
  %must_be_serial = icmp ne i32 %serial_only, 0
  br i1 %must_be_serial, label %run_serial, label %look_for_changes
look_for_changes:
  %threads.at = getelementptr i8, ptr %control, i64 {num_threads}
  %set_threads = load i32, ptr %threads.at
  %one_thread = icmp eq i32 %set_threads, 1
  br i1 %one_thread, label %run_serial, label %count_changes
count_changes:
  store i64 0, ptr %changes
  %stopped = call i32 @dl_iterate_phdr(ptr @tvm_sparse_count_libraries, ptr %changes)
  %now = load i64, ptr %changes
  %before.at = getelementptr i8, ptr %control, i64 {library_changes}
  %before = load i64, ptr %before.at
  %same = icmp eq i64 %now, %before
  br i1 %same, label %choose, label %refresh
refresh:
  store i64 %now, ptr %before.at
  %refresh.at = getelementptr i8, ptr %control, i64 {refresh}
  %refresh.fn = load ptr, ptr %refresh.at
  call void %refresh.fn()
  br label %choose
choose:
  %parallel.at = getelementptr i8, ptr %control, i64 {omp_parallel}
  %parallel = load ptr, ptr %parallel.at
  %thread_num.at = getelementptr i8, ptr %control, i64 {omp_thread_num}
  %thread_num = load ptr, ptr %thread_num.at
  %is_set = icmp ne i32 %set_threads, 0
  %has_openmp = icmp ne ptr %parallel, null
  br i1 %is_set, label %limit, label %default_threads
default_threads:
  br i1 %has_openmp, label %ask_openmp, label %ask_control
ask_openmp:
  %max_threads.at = getelementptr i8, ptr %control, i64 {omp_max_threads}
  %max_threads.fn = load ptr, ptr %max_threads.at
  %openmp_threads = call i32 %max_threads.fn()
  br label %limit
ask_control:
  %default.at = getelementptr i8, ptr %control, i64 {default_threads}
  %pool_threads = load i32, ptr %default.at
  br label %limit
limit:
  %asked = phi i32 [ %set_threads, %choose ], [ %openmp_threads, %ask_openmp ],
                   [ %pool_threads, %ask_control ]
  %too_many = icmp ugt i32 %asked, {max_threads}
  %threads = select i1 %too_many, i32 {max_threads}, i32 %asked
  %alone = icmp ule i32 %threads, 1
  br i1 %alone, label %run_serial, label %fill
fill:
  %share.at = getelementptr i8, ptr %control, i64 {tasks_per_thread}
  %share = load i32, ptr %share.at
  %r1 = getelementptr %Region, ptr %region, i32 0, i32 1
  %r2 = getelementptr %Region, ptr %region, i32 0, i32 2
  %r3 = getelementptr %Region, ptr %region, i32 0, i32 3
  %r4 = getelementptr %Region, ptr %region, i32 0, i32 4
  %r5 = getelementptr %Region, ptr %region, i32 0, i32 5
  %r6 = getelementptr %Region, ptr %region, i32 0, i32 6
  %r7 = getelementptr %Region, ptr %region, i32 0, i32 7
  %r8 = getelementptr %Region, ptr %region, i32 0, i32 8
  store ptr %lambda, ptr %region
  store ptr %closure, ptr %r1
  store ptr %thread_num, ptr %r2
  store ptr %counters, ptr %r3
  store i32 %threads, ptr %r4
  store i32 %share, ptr %r5
  store i32 0, ptr %r6
  store i32 0, ptr %r7
  %team_size.at = getelementptr i8, ptr %control, i64 {omp_team_size}
  %team_size = load ptr, ptr %team_size.at
  store ptr %team_size, ptr %r8
  br label %clear
clear:
  %c = phi i32 [ 0, %fill ], [ %c.inc, %clear ]
  %counter = getelementptr [16 x i32], ptr %counters, i32 %c, i32 0
  store i32 0, ptr %counter
  %c.inc = add i32 %c, 1
  %cleared = icmp uge i32 %c.inc, %threads
  br i1 %cleared, label %start, label %clear
start:
  br i1 %has_openmp, label %check_stall, label %run_pool
check_stall:
  %begin = call i64 @tvm_sparse_now()
  %avoid.at = getelementptr i8, ptr %control, i64 {avoid_openmp_until}
  %avoid = load i64, ptr %avoid.at
  %avoided = icmp slt i64 %begin, %avoid
  br i1 %avoided, label %run_pool, label %run_openmp
run_openmp:
  call void %parallel(ptr @tvm_sparse_openmp_worker, ptr %region, i32 %threads, i32 0)
  %end = call i64 @tvm_sparse_now()
  %began.at = getelementptr %Region, ptr %region, i32 0, i32 9
  %began = load i64, ptr %began.at
  %ended.at = getelementptr %Region, ptr %region, i32 0, i32 10
  %ended = load i64, ptr %ended.at
  %total = sub i64 %end, %begin
  %useful = sub i64 %ended, %began
  %wasted = sub i64 %total, %useful
  %long = icmp sgt i64 %wasted, {stall}
  %wasted.twice = shl i64 %wasted, 1
  %most = icmp sgt i64 %wasted.twice, %useful
  %stalled = and i1 %long, %most
  br i1 %stalled, label %avoid_openmp, label %finish
avoid_openmp:
  %until = add i64 %end, {avoidance}
  store i64 %until, ptr %avoid.at
  br label %finish
run_pool:
  %ran = call i32 @tvm_sparse_pool_run(ptr %control, ptr %region, i32 %threads)
  %pool_was_busy = icmp eq i32 %ran, 0
  br i1 %pool_was_busy, label %run_serial, label %finish
finish:
  %failed = load atomic i32, ptr %r6 acquire, align 4
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %report, label %good
report:
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @tvm_sparse_error_kind, ptr @tvm_sparse_error_text)
  ret i32 -1
good:
  ret i32 0
run_serial:
  store ptr null, ptr %env
  %one.at = getelementptr %Env, ptr %env, i32 0, i32 1
  store i32 1, ptr %one.at
  %code = call i32 %lambda(i32 0, ptr %env, ptr %closure)
  ret i32 %code
}}

; tvm_sparse_launcher(control address) -> launcher address
define dllexport i32 @__tvm_ffi_tvm_sparse_launcher(ptr %self, ptr %args, i32 %n, ptr %result) {{
  %control.at = getelementptr i8, ptr %args, i64 8
  %control = load ptr, ptr %control.at
  store ptr %control, ptr @tvm_sparse_control
  store i32 1, ptr %result
  %value.at = getelementptr i8, ptr %result, i64 8
  store ptr @tvm_sparse_launch, ptr %value.at
  ret i32 0
}}
"""

_METADATA_SOURCE = """
@tvm_sparse_metadata_text = internal constant [{size} x i8] c"{text}\\00"

; tvm_sparse_metadata() -> address of the metadata, a NUL-terminated JSON text in UTF-8
define dllexport i32 @__tvm_ffi_tvm_sparse_metadata(ptr %self, ptr %args, i32 %n, ptr %result) {{
  store i32 1, ptr %result
  %value.at = getelementptr i8, ptr %result, i64 8
  store ptr @tvm_sparse_metadata_text, ptr %value.at
  ret i32 0
}}
"""

# Linked into a kernel's own LLVM module, the only place from where its launcher pointer is seen.
EXCHANGE_SOURCE = """
@__TVMBackendParallelLaunch = external global ptr
define i64 @tvm_sparse_exchange_launcher(i64 %address) {
  %old = load ptr, ptr @__TVMBackendParallelLaunch
  %new = inttoptr i64 %address to ptr
  %keep = icmp eq i64 %address, 0
  %chosen = select i1 %keep, ptr %old, ptr %new
  store ptr %chosen, ptr @__TVMBackendParallelLaunch
  %result = ptrtoint ptr %old to i64
  ret i64 %result
}
"""


def launcher_source() -> str:
    """Return the launcher's IR without a module header."""
    return _REGION_SOURCE.format(
        max_threads=MAX_THREADS,
        polls=2000,
        num_threads=_NUM_THREADS,
        tasks_per_thread=_TASKS_PER_THREAD,
        omp_parallel=_OMP_PARALLEL,
        omp_thread_num=_OMP_THREAD_NUM,
        omp_max_threads=_OMP_MAX_THREADS,
        library_changes=_LIBRARY_CHANGES,
        refresh=_REFRESH,
        serial=_SERIAL,
        default_threads=_DEFAULT_THREADS,
        omp_team_size=_OMP_TEAM_SIZE,
        avoid_openmp_until=_AVOID_OPENMP_UNTIL,
        stall=2_000_000,
        avoidance=1_000_000_000,
        pool_busy=_POOL_BUSY,
        pool_size=_POOL_SIZE,
        pool_pending=_POOL_PENDING,
        pool_workers=_POOL_WORKERS,
        worker_stride=_WORKER_STRIDE,
        worker_region=_WORKER_REGION,
        worker_control=_WORKER_CONTROL,
        worker_index=_WORKER_INDEX,
    )


def metadata_source(metadata: dict) -> str:
    """Return IR that holds `metadata` as JSON text, with a function giving its address."""
    encoded = json.dumps(metadata, separators=(",", ":")).encode()
    return _METADATA_SOURCE.format(size=len(encoded) + 1, text=_characters(encoded))


def library_binary_source(binary: bytes) -> str:
    """Return IR that holds `binary`, the modules that TVM's loader adds to a library."""
    return (
        f"@__tvm_ffi__library_bin = dllexport constant [{len(binary)} x i8] "
        f'c"{_characters(binary)}", align 16\n'
    )


def _characters(raw: bytes) -> str:
    """Write bytes as they stand in a string of LLVM IR."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in raw
    )
