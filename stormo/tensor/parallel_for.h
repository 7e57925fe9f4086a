#pragma once

#include <cstdint>
#include <functional>

namespace stormo::tensor {

/// Calls body(begin, end) for parts of [0, count) on libtorch's intra-op threads, as many as
/// at::get_num_threads() says, the caller among them; parts begin at multiples of `grain`. Blocks.
/// Inside another such loop, and when one part is enough, the caller does it alone. What `body`
/// throws leaves this, one exception of them.
///
/// at::parallel_for is a template around OpenMP's pragmas: in code that is not compiled for OpenMP
/// it runs on the caller alone. This runs in a loop that was compiled into libtorch, whichever
/// threads that uses.
void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace stormo::tensor
