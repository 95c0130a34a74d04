//! The figures as a function of the number of panes.

use super::*;

/// Measures on one server to which panes are added.
pub(crate) fn growth(bench: &mut Bench) {
    let sizes: &[usize] = if bench.is_smoke() {
        &[2, 4]
    } else {
        &[5, 20, 50, 100, 200]
    };
    let scale = if bench.is_smoke() { 0.05 } else { 1.0 };
    let seconds = |seconds: f64| Duration::from_secs_f64(seconds * scale);
    let mut panes = Panes::start("replier", sizes[0]);
    let mut ours = Vec::new();
    let mut polling = Vec::new();
    let mut libtmux = libtmux(bench, &panes);
    let mut looking = Vec::new();
    let mut number = 5_000_000;
    for &size in sizes {
        bench.progress(&format!("{size} panes"));
        panes.grow(size);
        let (trips, took) = many(&panes, seconds(0.5));
        let mut seen: Vec<f64> = (0..if bench.is_smoke() { 2 } else { 40 })
            .map(|i| {
                number += 1;
                let pane = panes.panes[i * 7 % size];
                let answer = panes.ask_in(
                    pane,
                    &format!("wait {} {number}", 500 + micros(number, 2_000)),
                );
                since(printed_at(&answer)).as_nanos() as f64
            })
            .collect();
        seen.sort_by(f64::total_cmp);
        let bus = Bus::of(&panes);
        std::thread::sleep(seconds(0.5));
        // The goal, half a millisecond in a second, is for the last size: that one is measured longer.
        let looked = if Some(&size) == sizes.last() {
            4.0
        } else {
            1.0
        };
        let idle = bus.share(|| std::thread::sleep(seconds(looked)));
        ours.push((
            size,
            trips as f64 / took,
            seen[seen.len() / 2],
            idle,
            bus.memory(),
        ));

        // The same by polling all panes every 500 ms, as in the specification.
        let mut late: Vec<f64> = (0..if bench.is_smoke() { 1 } else { 3 })
            .map(|_| {
                number += 1;
                poll_all(&panes, number, seconds(0.5))
            })
            .collect();
        late.sort_by(f64::total_cmp);
        let share = bus.share(|| {
            let start = Instant::now();
            while start.elapsed() < seconds(1.0) {
                let round = Instant::now();
                for &pane in &panes.panes {
                    capture(&panes.socket, pane);
                }
                std::thread::sleep(seconds(0.5).saturating_sub(round.elapsed()));
            }
        });
        polling.push((size, late[late.len() / 2], share));
        if let Some(libtmux) = &mut libtmux {
            let (before, start) = (nanoseconds(bus.server), Instant::now());
            let own = libtmux.ask(&format!("look {}", seconds(1.0).as_secs_f64()));
            let used = (nanoseconds(bus.server) - before) as f64;
            let server = used / start.elapsed().as_nanos() as f64 * 100.0;
            looking.push((size, own.parse::<f64>().unwrap() + server));
        }
    }
    let last = ours.last().map_or(0.0, |&(.., idle, _)| idle);
    let biggest = sizes.last().unwrap_or(&0);
    bench.figure(
        &format!("idle, {biggest} panes, share of a core"),
        last,
        "%",
        Some(Goal::at_most(0.05)),
    );
    bench
        .growth(
            "round trips a second, all panes asking at once",
            "panes",
            "",
        )
        .ours(
            "send_message, get_response",
            ours.iter().map(|o| (o.0, o.1)),
        )
        .report();
    bench
        .growth("marker printed until seen", "panes", "ns")
        .ours("get_response", ours.iter().map(|o| (o.0, o.2)))
        .peer(
            "the specification's polling",
            polling.iter().map(|p| (p.0, p.1)),
        )
        .report();
    bench
        .growth("share of a core while nothing happens", "panes", "%")
        .ours("attached", ours.iter().map(|o| (o.0, o.3)))
        .peer(
            "the specification's polling",
            polling.iter().map(|p| (p.0, p.2)),
        )
        .peer("libtmux, polling each 500 ms", looking)
        .report();
    bench
        .growth("resident memory of the host and its client", "panes", "MiB")
        .ours("attached", ours.iter().map(|o| (o.0, o.4)))
        .report();
}
