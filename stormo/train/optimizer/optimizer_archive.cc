#include <stormo/train/optimizer/optimizer_archive.h>

#include <algorithm>
#include <sstream>

#include <torch/serialize.h>

namespace stormo::train {
namespace {

constexpr const char* kArchive = "optimizer.archive";

}  // namespace

std::map<std::string, torch::Tensor> archive_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(out);
  const std::string bytes = out.str();
  torch::Tensor tensor = torch::empty({static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.data_ptr()));
  return {{kArchive, tensor}};
}

Status load_archive(torch::optim::Optimizer& optimizer,
                    const std::map<std::string, torch::Tensor>& state) {
  const auto found = state.find(kArchive);
  if (state.size() != 1 || found == state.end()) {
    return invalid_argument(
        "the checkpoint was not written with an optimizer of torch::optim; resume with the "
        "optimizer that wrote it");
  }
  const torch::Tensor bytes = found->second.contiguous();
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
    optimizer.load(archive);
  } catch (const c10::Error& error) {
    return invalid_argument(std::string("the optimizer's state cannot be read: ") +
                            error.what_without_backtrace() +
                            "; resume with the optimizer that wrote it");
  }
  return {};
}

}  // namespace stormo::train
