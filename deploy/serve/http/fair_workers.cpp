#include "deploy/serve/http/fair_workers.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace specdec::deploy {

void WorkQueue::push(WorkItem item) {
  const auto [at, is_new] = parties_.try_emplace(item.party);
  if (is_new) at->second.seconds = floor_;
  at->second.waiting.push_back(std::move(item));
  ++waiting_;
}

std::deque<WorkItem>::iterator WorkQueue::startable(Party& party) const {
  if (party.running >= of_one_party_) return party.waiting.end();
  return std::find_if(party.waiting.begin(), party.waiting.end(),
                      [this](const WorkItem& item) { return !item.large || running_large_ < large_; });
}

std::optional<WorkItem> WorkQueue::pop() {
  Party* next = nullptr;
  for (auto& [name, party] : parties_) {
    if (startable(party) == party.waiting.end()) continue;
    if (!next || std::pair(party.running, party.seconds) < std::pair(next->running, next->seconds)) next = &party;
  }
  if (!next) return std::nullopt;
  const auto at = startable(*next);
  WorkItem item = std::move(*at);
  next->waiting.erase(at);
  --waiting_;
  ++next->running;
  running_large_ += item.large;
  floor_ = std::max(floor_, next->seconds);
  return item;
}

void WorkQueue::done(const std::string& party, bool large, double seconds) {
  const auto at = parties_.find(party);
  at->second.seconds += seconds;
  --at->second.running;
  running_large_ -= large;
  // A party (tenant) without work is forgotten if it has used at most floor_ seconds, because a new party starts with
  // floor_ seconds anyway. A party that has used more is remembered while items of any party wait.
  if (at->second.waiting.empty() && at->second.running == 0 && (waiting_ == 0 || at->second.seconds <= floor_))
    parties_.erase(at);
  if (waiting_ == 0)
    std::erase_if(parties_, [](const auto& p) { return p.second.waiting.empty() && p.second.running == 0; });
}

FairWorkers::FairWorkers(size_t threads) : queue_(threads) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

FairWorkers::~FairWorkers() { stop(); }

void FairWorkers::submit(WorkItem item) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push(std::move(item));
  }
  changed_.notify_one();
}

void FairWorkers::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void FairWorkers::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<WorkItem> item = queue_.pop();
    if (!item) {
      if (stopped_ && queue_.empty()) return;
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    // Counts wall time instead of CPU time: while child processes render templates or compile grammars, the tenant
    // still occupies this thread.
    const double before = SystemClock().seconds();
    item->work();
    item->work = nullptr;
    const double seconds = SystemClock().seconds() - before;
    lock.lock();
    queue_.done(item->party, item->large, seconds);
    changed_.notify_all();  // items may start that waited for this tenant or for large work
  }
}

}  // namespace specdec::deploy
