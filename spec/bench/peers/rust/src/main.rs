//! The driver of rslock; spec/bench/peers/run says what it is told and prints.
//!
//!     peer PATTERN KIND TASKS SECONDS WARM_UP FILE ADDRESS...

use rslock::LockManager;
use std::fs::{read_to_string, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HOLD: Duration = Duration::from_millis(5);
const REST: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(30);

static TOTAL: AtomicU64 = AtomicU64::new(0);
static MEASURING: AtomicBool = AtomicBool::new(false);
static SAMPLES: Mutex<Vec<f64>> = Mutex::new(Vec::new()); // microseconds

fn clock(which: libc::clockid_t) -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(which, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn now() -> f64 {
    clock(libc::CLOCK_MONOTONIC)
}

fn sample(seconds: f64) {
    TOTAL.fetch_add(1, Relaxed);
    if MEASURING.load(Relaxed) {
        SAMPLES.lock().unwrap().push(seconds * 1e6);
    }
}

fn put(stamp: &File, at: f64) {
    stamp.write_all_at(format!("{at:020.9}").as_bytes(), 0).unwrap();
}

fn get(stamp: &File) -> f64 {
    let mut text = [0u8; 20];
    stamp.read_exact_at(&mut text, 0).unwrap();
    std::str::from_utf8(&text).unwrap().parse().unwrap()
}

async fn cycle(locks: LockManager, name: String) {
    loop {
        let at = now();
        let lock = locks.acquire_no_guard(name.as_bytes(), LEASE).await;
        locks.unlock(&lock.unwrap()).await;
        sample(now() - at);
    }
}

async fn pass_on(locks: LockManager, stamp: Arc<File>) {
    loop {
        let lock = locks.acquire_no_guard(b"bench", LEASE).await.unwrap();
        let (at, released) = (now(), get(&stamp));
        if released > 0.0 {
            sample(at - released);
        }
        put(&stamp, 0.0);
        tokio::time::sleep(HOLD).await;
        put(&stamp, now());
        let mine = get(&stamp);
        locks.unlock(&lock).await;
        while mine == get(&stamp) {
            tokio::time::sleep(REST).await;
        }
    }
}

fn report(seconds: f64, cpu: f64) -> ! {
    let mut all = std::mem::take(&mut *SAMPLES.lock().unwrap());
    let statm = read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    let mut text = format!(
        "\"count\":{},\"total\":{},\"seconds\":{:.6},\"cpu_s\":{:.6},\
         \"rss_kb\":{}",
        all.len(),
        TOTAL.load(Relaxed),
        seconds,
        cpu,
        pages * 4
    );
    all.sort_by(f64::total_cmp);
    for share in [50, 99] {
        if !all.is_empty() {
            let value = all[(all.len() - 1) * share / 100];
            text += &format!(",\"p{share}_us\":{value:.1}");
        }
    }
    println!("{{{text}}}");
    exit(0)
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (pattern, kind) = (args[0].as_str(), args[1].as_str());
    if !["lock", "red"].contains(&kind) || pattern == "hold" {
        exit(3);
    }
    let tasks: usize = args[2].parse().unwrap();
    let seconds: f64 = args[3].parse().unwrap();
    let warm: f64 = args[4].parse().unwrap();
    let urls = args[6..].iter().map(|a| format!("redis://{a}/")).collect();
    let locks = LockManager::new(urls);
    if pattern == "start" {
        let lock = locks.acquire_no_guard(b"bench", LEASE).await.unwrap();
        locks.unlock(&lock).await;
        exit(0);
    }
    let stamp = OpenOptions::new().read(true).write(true).open(&args[5]);
    let stamp = Arc::new(stamp.unwrap());
    for i in 0..tasks {
        match pattern {
            "handover" => {
                tokio::spawn(pass_on(locks.clone(), stamp.clone()));
            }
            "cycles" => {
                tokio::spawn(cycle(locks.clone(), format!("bench:{i}")));
            }
            _ => {
                tokio::spawn(cycle(locks.clone(), "bench".to_string()));
            }
        }
    }
    tokio::time::sleep(Duration::from_secs_f64(warm)).await;
    MEASURING.store(true, Relaxed);
    let (at, cpu) = (now(), clock(libc::CLOCK_PROCESS_CPUTIME_ID));
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    MEASURING.store(false, Relaxed);
    report(now() - at, clock(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu);
}
