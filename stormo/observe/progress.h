#pragma once

#include <ostream>
#include <string>

#include <stormo/observe/records.h>

namespace stormo::observe {

/// The abilities of the stream of a TextObserver. The default is for files and pipes.
struct TerminalStyle {
  bool live = false;   ///< redraw one progress line in place
  bool color = false;  ///< bold and dim text
  int columns = 100;   ///< width of the live line
};

/// The style for a stream that is or is not a terminal, given the values of NO_COLOR and TERM (null
/// when unset): a non-empty NO_COLOR disables colour, TERM=dumb disables all.
TerminalStyle terminal_style(bool is_terminal, int columns, const char* no_color, const char* term);

/// Prints a run for people: progress line, evaluations, summary. With a live style the progress
/// line is redrawn in place and all other lines scroll above it; else every logged step is a line.
class TextObserver final : public RunObserver {
 public:
  /// `out` must outlive the observer.
  TextObserver(std::ostream& out, TerminalStyle style) : out_(out), style_(style) {}

  void on_start(const StartRecord& record) override;
  void on_sharding(const ShardingRecord& record) override;
  void on_step(const StepRecord& record) override;
  void on_progress(const StepRecord& record) override;
  void on_eval(const EvalRecord& record) override;
  void on_save_failed(const SaveFailedRecord& record) override;
  void on_warning(const WarningRecord& record) override;
  void on_slow_ranks(const SlowRanksRecord& record) override;
  void on_end(const EndRecord& record) override;
  void on_error(const ErrorRecord& record) override;

 private:
  void print_line(const std::string& line);
  void print_lines(const std::string& lines);  // each ended by a newline
  void draw_line(const StepRecord& record);
  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;

  std::ostream& out_;
  TerminalStyle style_;
  bool live_line_shown_ = false;
};

/// Prints only failures and warnings, one line each, for people while a program reads the JSON
/// lines.
class WarningObserver final : public RunObserver {
 public:
  /// `out` must outlive the observer.
  explicit WarningObserver(std::ostream& out) : out_(out) {}

  void on_save_failed(const SaveFailedRecord& record) override;
  void on_warning(const WarningRecord& record) override;
  void on_slow_ranks(const SlowRanksRecord& record) override;

 private:
  std::ostream& out_;
};

}  // namespace stormo::observe
