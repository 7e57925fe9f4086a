#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cli/doctor/torch_facts.h>

namespace stormo::cli {

Result<std::optional<TorchFacts>> torch_facts() {
  TorchFacts facts;
  facts.version = TORCH_VERSION;
  facts.intra_op_threads = at::get_num_threads();
#if AT_MKL_ENABLED()
  facts.blas = "MKL";
#else
  facts.blas = AT_BUILD_WITH_BLAS() ? "a BLAS library" : "none known";
#endif
  return std::optional(std::move(facts));
}

}  // namespace stormo::cli
