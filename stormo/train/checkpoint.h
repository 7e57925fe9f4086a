#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <stormo/base/status.h>

namespace stormo::train {

/// Everything a run needs to go on as if it had never stopped. Names are dotted; tensors of the
/// optimizer are "optimizer.<slot>.<parameter>".
struct Snapshot {
  std::map<std::string, torch::Tensor> model;  ///< parameters and buffers
  std::map<std::string, torch::Tensor> optimizer;
  std::int64_t step = 0;     ///< steps done; the data cursor is a function of it
  std::int64_t samples = 0;  ///< samples seen over all ranks
  std::string name;          ///< of the recipe or program
  std::string recipe_json;   ///< resolved recipe, "{}" for programs
};

/// Layout of `directory`: step-00000100/{model.safetensors, optimizer.safetensors, manifest.json}.
/// Written under a staging name, synced, published by one rename. Readable from Python with the
/// safetensors package; no pickle anywhere.
///
/// Returns the path of the published checkpoint, and removes complete ones beyond the newest
/// `keep`.
Result<std::string> save_checkpoint(const std::string& directory, const Snapshot& snapshot,
                                    int keep);

/// The newest complete checkpoint under `directory`; kNotFound when there is none.
Result<std::string> newest_checkpoint(const std::string& directory);

/// Loads and checks (manifest schema, checksums, tensor table) the checkpoint at `path`; kCorrupt
/// names the file and what is wrong with it.
Result<Snapshot> load_checkpoint(const std::string& path);

/// Finds out before training whether `directory` can be written: creates it and writes a probe
/// file.
Status probe_checkpoint_directory(const std::string& directory);

/// Hash over names, shapes, dtypes and bytes of all tensors, in name order; 16 hexadecimal digits.
std::string weights_hash(const std::map<std::string, torch::Tensor>& tensors);

/// Parameters and buffers of a module by dotted name.
std::map<std::string, torch::Tensor> named_state(const torch::nn::Module& module);

}  // namespace stormo::train
