#pragma once

/// The public C++ API of Stormo in one include.
///
/// A user's own training loop needs two names of it: `stormo::init()` and
/// `stormo::DistributedDataParallel`, or `stormo::FullyShardedDataParallel`; in one process
/// `stormo::run_replicas()` takes the place of the first.
/// `stormo::train::RunCheckpoint` saves and restores such a loop in one call each;
/// `stormo::train::Trainer` is the loop ready made.

#include <stormo/base/status.h>
#include <stormo/base/version.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/data/prefetch.h>
#include <stormo/data/sampler.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/train/checkpoint/run_checkpoint.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>
#include <stormo/train/world/init.h>
#include <stormo/train/world/run_replicas.h>
#include <stormo/train/wrap/data_parallel.h>
#include <stormo/train/wrap/distributed_data_parallel.h>
#include <stormo/train/wrap/sync_batch_norm.h>
