#pragma once

#include <string>

#include <stormo/plan/limits.h>
#include <stormo/plan/mesh.h>
#include <stormo/plan/text/text.h>

namespace stormo::plan {

/// " dp=2 tp=4" and the line end: the axes in the text form of a mesh or a step plan. Internal to
/// plan/.
void append_axes(std::string& out, const Mesh& m);
/// Reads the axes up to the line end; distinct names, at most kMaxRanks ranks.
Mesh read_axes(TextReader& in);

}  // namespace stormo::plan
