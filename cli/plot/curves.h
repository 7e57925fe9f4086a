#pragma once

#include <functional>
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

/// Curves over one axis. y is from 0 to at most twice the first value of a curve: what is above is
/// cut off, since it would hide the rest.
struct Plot {
  std::string x_label, y_label;
  std::vector<PlotCurve> curves = {};
  /// Both axes are logarithmic, for points above 0, all of which are shown, and each has a mark.
  bool logarithmic = false;
  std::function<std::string(double)> x_text = {}, y_text = {};  ///< of a value; none: the number
};

/// What a picture says besides its curves. Any text.
struct PlotText {
  std::string title;
  std::string subtitle;
  std::vector<std::string> legend = {};  ///< by curve, after its name; may be empty
};

/// An SVG of plots, one below the other; curves of the same number have the same colour, and one
/// line in the legend.
std::string svg_plots(const PlotText& text, const std::vector<Plot>& plots);

}  // namespace stormo::cli
