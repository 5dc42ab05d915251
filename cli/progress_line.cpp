#include "cli/progress_line.h"

#include <cmath>

#include "base/format.h"

namespace specdec::cli {

namespace {

// Converts the progress to kB or B if a small total would be shown as "0 MB".
Progress in_readable_unit(Progress p) {
  for (const char* smaller : {"kB", "B"})
    if (p.total > 0 && p.total < 10 && (p.unit == "MB" || p.unit == "kB"))
      p.done *= 1000, p.total *= 1000, p.unit = smaller;
  return p;
}

}  // namespace

std::string readable_duration(double seconds) {
  const long s = std::lround(seconds);
  if (s < 60) return format("%lds", s);
  return s < 3600 ? format("%ldm%02lds", s / 60, s % 60) : format("%ldh%02ldm", s / 3600, s / 60 % 60);
}

void ProgressLine::show(const Progress& progress, double now) {
  if (progress.stage.empty()) {
    end();
    any_ = false;
    return;
  }
  if (!any_ || progress.stage != last_.stage) {
    end();
    started_ = changed_ = now;
    done_before_ = progress.done;
    if (terminal_) shown_ = now - 1;  // a new stage is drawn at once
  }
  if (any_ && progress.done != last_.done) changed_ = now;
  any_ = true;
  last_ = progress;
  // A stage that repeats work may reach its total several times; only the first time is drawn at once.
  const bool ends = finished() && !ended_;
  ended_ = finished();
  const double gap = terminal_ ? kRedrawSeconds : now - started_ < kOldStageSeconds ? kLineSeconds : kOldLineSeconds;
  if (ends || now - shown_ >= gap) put(now);
}

void ProgressLine::tick(double now) {
  if (!any_ || finished()) return;
  const double gap = terminal_ ? 1 : now - started_ < kOldStageSeconds ? kLineSeconds : kOldLineSeconds;
  if (now - shown_ >= gap) put(now);
}

double ProgressLine::remaining(double now) const {
  const double left = last_.total - last_.done, done = last_.done - done_before_;
  const double since = now - changed_, expected = (changed_ - started_) * left / done;
  return since < expected ? expected - since : (now - started_) * left / done;
}

void ProgressLine::put(double now) {
  shown_ = now;
  const double elapsed = now - started_;
  const Progress p = in_readable_unit(last_);
  std::string line = p.stage;
  if (p.total > 0 || p.done > 0)
    line += "  " + decimals(finished() ? p.done : std::floor(p.done), 0) +
            (p.total > 0 ? " / " + decimals(p.total, 0) : "") + " " + p.unit;
  if (finished())
    line += "  in " + readable_duration(elapsed);
  else if (p.total > 0 && last_.done > done_before_)
    line += "  ETA " + readable_duration(remaining(now));
  else
    line += "  for " + readable_duration(elapsed);
  if (!p.detail.empty()) line += "  " + p.detail;
  if (terminal_) {
    write_("\r\033[K" + line + (finished() ? "\n" : ""));
    open_ = !finished();
  } else {
    write_(line + "\n");
  }
}

void ProgressLine::end() {
  if (open_) write_("\n");
  open_ = false;
}

}  // namespace specdec::cli
