#pragma once

#include <stormo/base/status.h>
#include <stormo/comm/request.h>

namespace stormo::comm {

/// OK when the buffers, counts and the reduction of `request` fit together on `rank` of `size`;
/// else kInvalidArgument that lists everything wrong. What other ranks called is not known here.
Status check_request(const Request& request, Rank rank, int size);

}  // namespace stormo::comm
