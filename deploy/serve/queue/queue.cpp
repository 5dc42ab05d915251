#include "deploy/serve/queue/queue.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/philox.h"

namespace specdec::deploy {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
    case FinishReason::kNoRoom:
      return "failed";
    case FinishReason::kDrained:
      return "drained";
    case FinishReason::kNoTokenLeft:
      return "no_token_left";
    case FinishReason::kMasksSpent:
      return "masks_spent";
  }
  return "failed";
}

namespace {

size_t bytes_of(const ChoiceEvent& event) {
  size_t bytes = event.text.size() + event.token_ids.size() * sizeof(int32_t) + event.texts.size() * sizeof(TokenText);
  for (const decode::PositionLogprobs& position : event.logprobs)
    bytes += sizeof position + position.top.size() * sizeof position.token;
  return bytes;
}

}  // namespace

void Channel::push(ChoiceEvent event) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (!event.echo) bytes_ += bytes_of(event);
    if (bytes_ > pending_bytes_) cancel();
    if (events_.empty()) wake = wake_;  // otherwise `wake` was called before, and take() has not been called since
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

decode::Request GenerationRequest::answer(size_t choice) const {
  const auto each = static_cast<size_t>(n);
  // With a client's seed, equal prompts of a request get equal answers. Without it, all answers are independent.
  const size_t index = options.seeded ? choice % each : choice;
  decode::Request out{prompts[choice / each], choice_seed(seed, index), options};
  out.options.prompt_logprobs = echo && options.logprobs >= 0;
  out.options.tenant = std::hash<std::string>{}(tenant);
  return out;
}

uint64_t choice_seed(uint64_t seed, size_t index) {
  if (index == 0) return seed;
  const auto r = philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(static_cast<uint64_t>(index) >> 32), 0x63686f69u, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (static_cast<uint64_t>(r[0]) << 32) | r[1];
}

namespace {

bool cancelled(const std::shared_ptr<const GenerationRequest>& request) { return request->channel->cancelled(); }

}  // namespace

void RequestQueue::drop_cancelled() {
  for (auto& [name, tenant] : tenants_) {
    if (!tenant.waiting.empty() && cancelled(tenant.waiting.front())) tenant.taken = 0;
    size_ -= std::erase_if(tenant.waiting, cancelled);
  }
}

void RequestQueue::set_tenant_limit(size_t requests) {
  const std::lock_guard lock(mutex_);
  tenant_limit_ = requests;
}

RequestQueue::Push RequestQueue::admission(size_t waiting, size_t of_tenant) const {
  return closed_                      ? Push::kClosed
         : waiting >= limit_          ? Push::kFull
         : of_tenant >= tenant_limit_ ? Push::kTenantFull
                                      : Push::kAccepted;
}

void RequestQueue::raise_to_minimum(Tenant& tenant) const {
  const Tenant* least = nullptr;
  for (const auto& [name, other] : tenants_)
    if (!other.waiting.empty() && (!least || other.served < least->served)) least = &other;
  if (!least) least = last_;
  if (least) tenant.served = std::max(tenant.served, least->served);
}

RequestQueue::Push RequestQueue::push(std::shared_ptr<const GenerationRequest> request) {
  {
    const std::lock_guard lock(mutex_);
    Tenant& tenant = tenants_[request->tenant];
    if (admission(size_, tenant.waiting.size()) != Push::kAccepted) drop_cancelled();
    if (const Push answer = admission(size_, tenant.waiting.size()); answer != Push::kAccepted) return answer;
    if (tenant.waiting.empty()) raise_to_minimum(tenant);
    tenant.waiting.push_back(std::move(request));
    ++size_;
    happened_ = true;
  }
  ready_.notify_one();
  return Push::kAccepted;
}

RequestQueue::Push RequestQueue::would_push(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  size_t waiting = 0, of_tenant = 0;
  for (const auto& [name, other] : tenants_) {
    const size_t alive = other.waiting.size() -
                         static_cast<size_t>(std::count_if(other.waiting.begin(), other.waiting.end(), cancelled));
    waiting += alive;
    if (name == tenant) of_tenant = alive;
  }
  return admission(waiting, of_tenant);
}

size_t RequestQueue::size() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

int RequestQueue::retry_after(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto at = tenants_.find(tenant);
  size_t ahead = size_;
  // Tenants take turns. So while this tenant's waiting requests are served, each other waiting tenant gets as many
  // requests served.
  if (size_ < limit_ && at != tenants_.end()) {
    const auto waiting =
        std::count_if(tenants_.begin(), tenants_.end(), [](const auto& t) { return !t.second.waiting.empty(); });
    ahead = std::min(size_, at->second.waiting.size() * static_cast<size_t>(waiting));
  }
  const double seconds = std::ceil(std::max(0.0, interval_) * static_cast<double>(ahead));
  return static_cast<int>(std::clamp(seconds, 1.0, static_cast<double>(kMaxRetrySeconds)));
}

RequestQueue::Next RequestQueue::try_pop(const std::set<std::string>& besides) {
  const std::lock_guard lock(mutex_);
  drop_cancelled();
  Tenant* tenant = nullptr;
  for (auto& [name, other] : tenants_)
    if (!other.waiting.empty() && !besides.contains(name) && (!tenant || other.served < tenant->served))
      tenant = &other;
  if (!tenant) return {};
  Next next{tenant->waiting.front(), tenant->taken++};
  if (tenant->taken == next.request->choices()) {
    tenant->waiting.pop_front();
    tenant->taken = 0;
    --size_;
  }
  tenant->served += kPromptWeight;
  last_ = tenant;
  return next;
}

bool RequestQueue::waits_besides(const std::set<std::string>& tenants) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& tenant) {
    const auto& waiting = tenant.second.waiting;
    return !tenants.contains(tenant.first) && !std::all_of(waiting.begin(), waiting.end(), cancelled);
  });
}

bool RequestQueue::more_of(const GenerationRequest& request) const {
  const std::lock_guard lock(mutex_);
  const auto tenant = tenants_.find(request.tenant);
  return tenant != tenants_.end() && !tenant->second.waiting.empty() &&
         tenant->second.waiting.front().get() == &request;
}

void RequestQueue::read(const std::string& tenant, int64_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  tenants_[tenant].served += static_cast<double>(kPromptWeight * prompt_tokens);
}

void RequestQueue::generated(const std::string& tenant, int64_t tokens) {
  const std::lock_guard lock(mutex_);
  tenants_[tenant].served += static_cast<double>(kAnswerWeight * tokens);
}

void RequestQueue::masked(const std::string& tenant, double seconds) {
  {
    const std::lock_guard lock(mutex_);
    tenants_[tenant].served += kAnswerWeight * kTokensPerMaskSecond * seconds;
    happened_ = true;
  }
  ready_.notify_one();
}

// Updates the estimated time per request from the interval between finished requests, only while other requests wait.
void RequestQueue::finished(double now) {
  constexpr double kNewest = 0.2;
  const std::lock_guard lock(mutex_);
  if (finished_at_ >= 0 && size_ > 0) {
    const double since = now - finished_at_;
    interval_ = interval_ < 0 ? since : interval_ + kNewest * (since - interval_);
  }
  finished_at_ = size_ > 0 ? now : -1;
}

void RequestQueue::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return happened_; });
  happened_ = false;
}

void RequestQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = happened_ = true;
  }
  ready_.notify_all();
}

bool RequestQueue::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace specdec::deploy
