#pragma once

#include <string>
#include <vector>

namespace stormo::cli {

struct PlotPoint {
  double x = 0, y = 0;
};

struct PlotCurve {
  std::string name;
  std::vector<PlotPoint> points = {};  ///< in the order of x
};

/// Curves over one axis.
struct Plot {
  std::string x_label;
  std::vector<PlotCurve> curves = {};
};

/// What a picture says besides its curves. Any text.
struct PlotText {
  std::string title;
  std::string subtitle;
  std::string y_label;
  std::vector<std::string> legend = {};  ///< by curve, after its name
};

/// An SVG of plots, one below the other; curves of the same number have the same colour, and one
/// line in the legend. y is from 0 to at most twice the first value of a curve: what is above is
/// cut off, since it would hide the rest.
std::string svg_plots(const PlotText& text, const std::vector<Plot>& plots);

}  // namespace stormo::cli
