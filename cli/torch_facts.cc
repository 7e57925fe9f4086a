#include <cli/torch_facts.h>

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

namespace stormo::cli {

TorchFacts torch_facts() {
  TorchFacts facts;
  facts.version = TORCH_VERSION;
  facts.intra_op_threads = at::get_num_threads();
#if AT_MKL_ENABLED()
  facts.blas = "MKL";
#else
  facts.blas = AT_BUILD_WITH_BLAS() ? "a BLAS library" : "none known";
#endif
  return facts;
}

}  // namespace stormo::cli
