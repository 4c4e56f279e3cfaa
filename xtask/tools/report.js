// At a line "report": writes node's diagnostic report to report.json.
console.log('ready');
process.stdin.on('data', () => {
    process.report.writeReport('report.json');
    console.log('done');
});
