#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/checkpoint/format/manifest.h>
#include <stormo/checkpoint/format/piece.h>

namespace stormo::checkpoint {

/// Writes the pieces, divided into boxes, as the safetensors file `name` in `folder`, and adds file
/// and boxes to `manifest`. A tensor that is one box keeps its name in the file; other boxes are
/// named by a slice as in Python, "name[0:2,3:5]".
Status write_shard(const std::string& folder, const std::string& name,
                   const std::vector<Piece>& pieces, Manifest& manifest);

}  // namespace stormo::checkpoint
