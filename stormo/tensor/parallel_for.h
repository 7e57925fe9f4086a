#pragma once

#include <cstdint>
#include <functional>

namespace stormo::tensor {

/// Calls body(begin, end) for parts of [0, count) on at::get_num_threads() of libtorch's intra-op
/// threads, including the caller; parts begin at multiples of `grain`. Blocks. Inside another such
/// loop, or if one part is enough, only the caller runs. If `body` throws, one of the exceptions is
/// rethrown.
///
/// at::parallel_for is a template around OpenMP pragmas: in code that is not compiled for OpenMP it
/// runs only on the caller. This function uses a loop that was compiled into libtorch.
void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace stormo::tensor
