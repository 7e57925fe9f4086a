#pragma once

#include <cstdint>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

bool has_batch_norm(const torch::nn::Module& module);

/// Whether a rank computes a single sample at once in some step of whole epochs of `samples`
/// samples, of which each step is divided into `parts`: as the end of an epoch, or because
/// micro-batches are that small.
bool computes_single_samples(const TrainerOptions& options, std::int64_t samples,
                             std::int64_t parts);

/// The global batch closest to that of the options with which no rank does so; 0: there is none.
std::int64_t batch_without_single_samples(const TrainerOptions& options, std::int64_t samples,
                                          std::int64_t parts);

/// kInvalidArgument if the run would come to a batch of one sample that the model cannot compute:
/// in training, BatchNorm needs more than one value per channel. Only then the model computes
/// something, one sample and two; its buffers and the random generator stay as they are.
Status check_single_samples(const Task& task, const data::Dataset& data,
                            const TrainerOptions& options, std::int64_t parts);

}  // namespace stormo::train
