#include <stormo/train/record/step_log.h>

#include <algorithm>

namespace stormo::train {

void StepLog::resume() {
  lanes_.take();  // what the pause took belongs to no step
  step_started_ = started_ = std::chrono::steady_clock::now();
}

void StepLog::add(std::int64_t samples, std::int64_t steps) {
  samples_ += samples;
  steps_ += steps;
  const TimePoint now = std::chrono::steady_clock::now();
  const double together = std::chrono::duration<double>(now - step_started_).count();
  times_.add(together, static_cast<std::uint64_t>(steps));
  step_started_ = now;
}

void StepLog::pause() {
  const TimePoint now = std::chrono::steady_clock::now();
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  seconds_ += elapsed;
  total_seconds_ += elapsed;
  started_ = now;
  const auto lanes = lanes_.take();
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lane_seconds_[i] += lanes[i];
    total_lane_seconds_[i] += lanes[i];
  }
}

observe::StepRecord StepLog::look(std::int64_t steps_left) {
  pause();
  observe::StepRecord record;
  record.times = times_;
  record.lane_seconds = total_lane_seconds_;
  if (seconds_ > 0) {
    record.samples_per_s = static_cast<double>(samples_) / seconds_;
    record.share = lane_seconds_;
    for (double& share : record.share) share = std::min(1.0, share / seconds_);
  }
  if (steps_ > 0) {
    record.eta_s = seconds_ / static_cast<double>(steps_) * static_cast<double>(steps_left);
  }
  return record;
}

observe::StepRecord StepLog::take(std::int64_t steps_left) {
  const observe::StepRecord record = look(steps_left);
  seconds_ = 0;
  lane_seconds_ = {};
  samples_ = 0;
  steps_ = 0;
  return record;
}

void RecentLoss::add(double loss_sum, double samples, std::int64_t steps) {
  steps_.push_back({loss_sum, samples, steps});
  count_ += steps;
  while (count_ - steps_.front().steps >= most_) {
    count_ -= steps_.front().steps;
    steps_.pop_front();
  }
}

double RecentLoss::mean() const {
  double loss_sum = 0, samples = 0;
  for (const Step& step : steps_) {
    loss_sum += step.loss_sum;
    samples += step.samples;
  }
  return samples > 0 ? loss_sum / samples : 0;
}

}  // namespace stormo::train
