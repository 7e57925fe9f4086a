#include <stormo/observe/tee.h>

namespace stormo::observe {

void TeeObserver::on_start(const StartRecord& record) {
  for (RunObserver* o : observers_) o->on_start(record);
}

void TeeObserver::on_sharding(const ShardingRecord& record) {
  for (RunObserver* o : observers_) o->on_sharding(record);
}

void TeeObserver::on_step(const StepRecord& record) {
  for (RunObserver* o : observers_) o->on_step(record);
}

void TeeObserver::on_progress(const StepRecord& record) {
  for (RunObserver* o : observers_) o->on_progress(record);
}

void TeeObserver::on_eval(const EvalRecord& record) {
  for (RunObserver* o : observers_) o->on_eval(record);
}

void TeeObserver::on_save_failed(const SaveFailedRecord& record) {
  for (RunObserver* o : observers_) o->on_save_failed(record);
}

void TeeObserver::on_warning(const WarningRecord& record) {
  for (RunObserver* o : observers_) o->on_warning(record);
}

void TeeObserver::on_end(const EndRecord& record) {
  for (RunObserver* o : observers_) o->on_end(record);
}

void TeeObserver::on_error(const ErrorRecord& record) {
  for (RunObserver* o : observers_) o->on_error(record);
}

}  // namespace stormo::observe
