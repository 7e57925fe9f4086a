#pragma once

#include <stormo/base/status.h>
#include <stormo/comm/request.h>

namespace stormo::comm {

/// OK when the buffers, counts and reduction of `request` are valid on `rank` of a group of `size`;
/// else kInvalidArgument with a list of all errors. Does not compare with the calls of other ranks.
Status check_request(const Request& request, Rank rank, int size);

}  // namespace stormo::comm
