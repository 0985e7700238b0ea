"""What the figures of a report mean: for the page, and for docs/input-analyzer-reference.md."""

from __future__ import annotations

DEFINITIONS: dict[str, str] = {
    "Samples/s": "Samples that all copies, or all workers, deliver together in a second, in the steady "
    "state: after buffers have filled, and after the first epoch where one ended.",
    "95 % interval": "Confidence interval of a measured rate, from the means of twenty stretches of the "
    "measurement (Student's t).",
    "Unsettled": "The measurement has used up its time before every copy had given ten batches, the rate had "
    "come to rest, and half of its interval was within 5 % of the rate.",
    "First epoch": "Rate of a single copy from its first batch to the end of its first epoch: files are read "
    "for the first time, a cache is filled. Cold: files were dropped from the memory of the operating system "
    "before it (--cold); an epoch that does not end in time is then as long as the measurement, one of "
    "unknown size as long as files are read from the disk. Else empty where an epoch does not end in time, "
    "or its end is not seen. Empty too where one is over at once.",
    "From disk per sample": "Bytes that the copy caused to be read from disks in its first epoch, by its "
    "samples: as the kernel counts them, to which many network file systems do not add. About 0 where files "
    "were in memory already.",
    "CPU time per sample": "CPU time of the worker's process, all its threads, divided by its samples.",
    "Bytes per sample": "Size of a sample as the worker gets it and sends it.",
    "Memory per task": "Most resident memory that a copy, with all processes below it, was seen to have.",
    "Warm-up": "Time until the measurement counts: buffers fill, and the first epoch ends where it is short.",
    "CPUs of others": "CPUs that programs beside the copies have kept busy meanwhile.",
    "Self time": "Time of a stage alone per sample, without the stages that it reads: computing and waiting.",
    "Share": "Part of a stage in the self time of all stages after the first epoch.",
    "CPU time in no stage": "CPU time per sample of a single copy with the recommended number of CPUs, less "
    "that of all stages after the first epoch. Stages are timed alone and in one thread, so what their calls "
    "cost in the pipeline, and handing elements and batches over between threads and processes, is in it.",
    "Bottleneck": "The stage without which a task with the recommended number of CPUs would be fastest after "
    "the first epoch, by the times of the stages, the threads that work on them, and the CPU time in no "
    "stage, which stays as it is: a change that spares calls and hand-overs, too, gives more.",
    "Gain": "What a recommended change gives. Measured: the rate with the change over that without it, read "
    "interleaved, with a 95 % interval. Expected: the time of a sample by the times of the "
    "stages, before over after: up to, where the change spares no hand-overs between threads; about, where "
    "it may spare some.",
    "Target": "Samples per second that the training can use: what the compile report estimates for the "
    "wafer, or what --target-samples-per-s says.",
    "Predicted": "Sum over the nodes of the fitted rate of as many copies as the node has workers. One "
    "task of the first node is the chief, which streams nothing. Of files that cannot be shared out evenly "
    "the part that counts until the worker with the most of them is through: their mean over the most.",
    "Model": "rate = n / (t(c) (1 + sigma (n-1) + kappa n (n-1))) for n tasks with c CPUs each on a node; "
    "t(c) is a part that more CPUs do not shorten and a part that they do. sigma is the time that copies "
    "wait for each other, kappa what they cost each other pairwise. Several threads that wait and compute "
    "alternately, as worker processes of a torch DataLoader, queue for the CPUs.",
    "Headroom": "By what part the expected rate exceeds the target. The smallest layout with at least 10 % "
    "is taken: the rate of the input alone is higher than that of a training, whose workers also send.",
    "Utilization": "Part of the time for which the accelerator is expected to have input: rate by target, "
    "at most 1.",
    "Input-bound": "No layout within the available nodes reaches the target: the accelerator waits for "
    "input. Probably: the interval of the expected rate has the target in it. That is, relative to the rate, "
    "the interval of the measurement that is nearest to the workers of a node, and the distance of the model "
    "from all of them, their squares added.",
}
