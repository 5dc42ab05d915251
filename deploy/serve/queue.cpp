#include "deploy/serve/queue.h"

#include <algorithm>
#include <utility>

#include "base/philox.h"

namespace specdec::deploy {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kFailed: case FinishReason::kNoRoom: return "failed";
    case FinishReason::kDrained: return "drained";
    case FinishReason::kNoTokenLeft: return "no_token_left";
  }
  return "failed";
}

namespace {

size_t bytes_of(const ChoiceEvent& event) {
  size_t bytes = event.text.size() + event.token_ids.size() * sizeof(int32_t);
  for (const decode::PositionLogprobs& position : event.logprobs) bytes += sizeof position + position.top.size() * sizeof position.token;
  return bytes;
}

}  // namespace

void Channel::push(ChoiceEvent event) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (!event.echo) bytes_ += bytes_of(event);
    if (bytes_ > pending_bytes_) cancel();
    if (events_.empty()) wake = wake_;  // else it was called already and take() is on its way
    events_.push_back(std::move(event));
  }
  if (wake) wake();
}

std::vector<ChoiceEvent> Channel::take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(events_, {});
}

void Channel::on_event(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

uint64_t choice_seed(uint64_t seed, size_t index) {
  if (index == 0) return seed;
  const auto r = philox4x32({static_cast<uint32_t>(index), static_cast<uint32_t>(static_cast<uint64_t>(index) >> 32), 0x63686f69u, 0},
                            {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (static_cast<uint64_t>(r[0]) << 32) | r[1];
}

void RequestQueue::drop_cancelled() {
  std::erase_if(requests_, [](const auto& request) { return request->channel->cancelled(); });
}

RequestQueue::Push RequestQueue::push(std::shared_ptr<const GenerationRequest> request) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Push::kClosed;
    if (requests_.size() >= limit_) drop_cancelled();
    if (requests_.size() >= limit_) return Push::kFull;
    requests_.push_back(std::move(request));
  }
  ready_.notify_one();
  return Push::kAccepted;
}

bool RequestQueue::full() const {
  const std::lock_guard lock(mutex_);
  return requests_.size() >= limit_ &&
         std::none_of(requests_.begin(), requests_.end(), [](const auto& request) { return request->channel->cancelled(); });
}

size_t RequestQueue::size() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

std::shared_ptr<const GenerationRequest> RequestQueue::try_pop() {
  const std::lock_guard lock(mutex_);
  drop_cancelled();
  if (requests_.empty()) return nullptr;
  auto request = std::move(requests_.front());
  requests_.pop_front();
  return request;
}

void RequestQueue::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return closed_ || !requests_.empty(); });
}

void RequestQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  ready_.notify_all();
}

bool RequestQueue::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace specdec::deploy
